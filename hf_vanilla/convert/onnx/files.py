"""Write graphs as ONNX files in float32 or int8, and beside them the program that runs them."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_vanilla.models.quantization_vanilla import LEAST_SCALE
from hf_vanilla.options import needs

logger = logging.getLogger(__name__)

OPSET = 20
ANY = torch.export.Dim.AUTO  # an axis of any size
DTYPES = ("float32", "int8")
# a file of ONNX ends at 2 GiB: larger weights go to a file beside it
LARGEST_FILE = 2**31 - 2**27
LARGEST_WEIGHT = 64  # of an int8 weight, in size
# name, an example, and axes of any size, as in `dynamic_shapes` of `torch.onnx.export`
Input = tuple[str, Tensor, dict[int, Any]]
Inputs = Sequence[Input | list[Input]]


def require_onnx() -> None:
    """Check that what an export needs is installed.

    Raises:
        ImportError: a library is missing.
    """
    with needs("export to ONNX needs onnx, onnxruntime and onnxscript", "onnx"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


@torch.no_grad()
def write_graph(
    graph: nn.Module, inputs: Inputs, outputs: Sequence[str], path: Path, *, dtype: str
) -> None:
    """Write one graph.

    Args:
        graph: float32, on the CPU.
        inputs: the arguments of its `forward`, each a tensor or a list of tensors.
        outputs: their names.
        path: the `.onnx` file; beside it `PATH.data` for weights of more than `LARGEST_FILE`.
        dtype: one of `DTYPES`.
    """
    names = [each[0] for one in inputs for each in (one if isinstance(one, list) else [one])]
    examples, sizes = (
        tuple([each[i] for each in one] if isinstance(one, list) else one[i] for one in inputs)
        for i in (1, 2)
    )
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    weights = sum(weight.nbytes for weight in graph.state_dict().values())
    logger.info("making %s", path.name)
    with quiet():
        program: Any = torch.onnx.export(
            graph.eval(),
            examples,
            input_names=names,
            output_names=outputs,
            dynamic_shapes=sizes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if dtype == "int8":
        _quantize(program.model)
    ClearMetadataAndDocStringPass()(program.model)  # stack traces with paths of this machine
    program.save(path, external_data=weights > LARGEST_FILE)


def _quantize(model: Any) -> None:
    """Compute a graph's products with constant weights in int8, in place, by standard operators.

    A weight has one scale per output channel. Activations are quantized as they come, each row by
    its own maximum, so a sentence's result does not depend on the rest of the batch; the dynamic
    quantization of ONNX Runtime has one scale for all rows. Processors without VNNI add pairs of
    products in 16 bits, which do not overflow with weights of 7 bits.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass

    graph, quantized = model.graph, {}
    tape = ir.tape.Tape(graph)

    def constant(values: Any) -> Any:
        return tape.initializer(ir.tensor(values, name=f"int8.{len(graph.initializers)}"))

    step, zero_point = constant(np.float32(1 / 127)), constant(np.uint8(128))
    last_axis = constant(np.array([-1]))
    for node in list(graph):
        if (weight := _weight(node)) is None:
            continue
        if (states := node.inputs[0]) not in quantized:
            maximum = tape.op("ReduceMax", [tape.op("Abs", [states]), last_axis])  # (..., 1)
            # 0 / 0 of a row of zeros may become any level: it is multiplied by the maximum, 0
            shares = tape.op("Div", [states, maximum])
            quantized[states] = tape.op("QuantizeLinear", [shares, step, zero_point]), maximum
        levels, maximum = quantized[states]
        scale = np.maximum(np.abs(weight).max(0) / LARGEST_WEIGHT, LEAST_SCALE)  # (O,)
        columns = constant(np.rint(weight / scale).astype(np.int8))
        sums = tape.op("MatMulInteger", [levels, columns, zero_point])
        product = tape.op("Cast", [sums], {"to": ir.DataType.FLOAT})
        for factor in (constant(scale / 127), maximum):
            product = tape.op("Mul", [product, factor])
        for bias in node.inputs[2:]:
            product = tape.op("Add", [product, bias])
        ir.convenience.replace_nodes_and_values(graph, node, [node], [], node.outputs, [product])
    RemoveUnusedNodesPass()(model)
    TopologicalSortPass()(model)


def _weight(node: Any) -> np.ndarray | None:
    """The constant `(I, O)` that a node multiplies by, as `nn.Linear` exports it; else None."""
    if node.op_type not in ("MatMul", "Gemm"):
        return None
    value = node.inputs[1]
    is_transposed = "transB" in node.attributes
    if (before := value.producer()) is not None and before.op_type == "Transpose":
        value, is_transposed = before.inputs[0], True
    if value.const_value is None or (weight := value.const_value.numpy()).ndim != 2:
        return None
    return weight.T if is_transposed else weight


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, such as those of exporters about their own parts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
