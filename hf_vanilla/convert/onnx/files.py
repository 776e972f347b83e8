"""Write graphs as ONNX files in float32 or int8, and beside them the program that runs them."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from hf_vanilla.options import install_hint

OPSET = 20
DTYPES = ("float32", "int8")
# a file of ONNX ends at 2 GiB: larger weights go to a file beside it
LARGEST_FILE = 2**31 - 2**27


def require_onnx() -> None:
    """Check that what an export needs is installed.

    Raises:
        ImportError: a library is missing.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export to ONNX needs {error.name}: {install_hint('onnx')}") from None


@torch.no_grad()
def write_graph(
    graph: nn.Module,
    inputs: tuple[Any, ...],
    path: Path,
    *,
    names: tuple[Sequence[str], Sequence[str]],
    sizes: tuple[Any, ...],
    dtype: str = "float32",
) -> None:
    """Write one graph.

    Args:
        graph: float32, on the CPU.
        inputs: examples of the arguments of its `forward`.
        path: the `.onnx` file; beside it `PATH.data` for weights of more than `LARGEST_FILE`.
        names: of its inputs and of its outputs, lists flattened.
        sizes: axes of any size, as `dynamic_shapes` of `torch.onnx.export`.
        dtype: one of `DTYPES`.
    """
    weights = sum(weight.nbytes for weight in graph.state_dict().values())
    with _quiet():
        program: Any = torch.onnx.export(
            graph.eval(),
            inputs,
            input_names=names[0],
            output_names=names[1],
            dynamic_shapes=sizes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    is_large = weights > LARGEST_FILE
    if dtype == "float32":
        program.save(path, external_data=is_large)
        return
    with TemporaryDirectory(dir=path.parent) as temporary:
        whole = Path(temporary) / path.name
        program.save(whole, external_data=is_large)
        del program
        _quantize(whole, path, is_large=is_large)


def _quantize(whole: Path, path: Path, *, is_large: bool) -> None:
    """Write the graph with int8 weights, one scale per output channel.

    Activations are quantized as they come. Processors without VNNI add pairs of products in 16
    bits, which do not overflow with weights of 7 bits (`reduce_range`).
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            whole,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=is_large,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of exporters about their own parts."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
