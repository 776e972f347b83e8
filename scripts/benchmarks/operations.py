"""Operators of torch in one step of a beam search, by kind: what a single sentence waits for.

    scripts/benchmarks/operations.py --size base

The model has random weights and is loaded as `Translator` loads it. A step is the tenth part of
what a search of 16 tokens calls more than one of 6. Counts are exact on every machine; those of
bf16 and int8 hold for processors that multiply such numbers.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from train_engines import SIZES

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.commands import run
from hf_vanilla.models.packing_vanilla import pack
from hf_vanilla.models.quantization_vanilla import quantize

DTYPES = ("float32", "bfloat16", "int8")
# an operator belongs to the first kind that has a part of its name
KINDS = {
    "products": ("linear", "mm.", "matmul"),
    "softmax, attention": ("softmax", "attention"),
    "norms": ("layer_norm",),
    "top-k, choices": ("topk", "gather", "where", "isin", "masked_fill", "embedding", "index"),
    "copies, casts, new arrays": (
        *("to_copy", "copy_", "clone", "cat", "stack", "pad"),
        *("empty", "zeros", "ones", "full", "arange", "scalar_tensor"),
    ),
    "views": (
        *("view", "reshape", "transpose", "expand", "slice", "select", "split", "squeeze"),
        *("alias", "permute", "aten.t.", "unbind", "detach"),
    ),
}
SHORT, LONG = 6, 16  # tokens


@dataclass(frozen=True, kw_only=True)
class OperationOptions:
    """Options of `table`."""

    size: str = field(default="base", metadata={"help": f"of the model: {', '.join(SIZES)}"})
    batch_size: int = field(default=1, metadata={"help": "sentences at once"})
    names: bool = field(default=False, metadata={"help": "a row for each operator"})

    def __post_init__(self) -> None:
        """Refuse what cannot be counted."""
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: choose one of {', '.join(SIZES)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: give 1 or more")


class CallCounter(TorchDispatchMode):
    """Counts the operators that torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a call and make it."""
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def model_in(size: str, dtype: str) -> VanillaForConditionalGeneration:
    """A model with random weights as `Translator` loads it."""
    torch.manual_seed(0)
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=8000, **SIZES[size])).eval()
    model = quantize(model) if dtype == "int8" else model.to(getattr(torch, dtype))
    pack(model)
    return model


def calls(model: VanillaForConditionalGeneration, sentences: int, tokens: int) -> Counter[str]:
    """Operators of a search that ends after so many tokens."""
    ids = torch.arange(5, 5 + 16 * sentences).view(sentences, 16)
    with torch.inference_mode(), CallCounter() as counter:
        found = model.generate(input_ids=ids, max_new_tokens=tokens)
    if found.shape[1] != 1 + tokens:
        raise ValueError("a sentence ended before its limit: its steps cannot be counted")
    return counter.calls


def kind_of(operator: str) -> str:
    """The kind of an operator such as `aten.mm.default`."""
    found = (kind for kind, parts in KINDS.items() if any(part in operator for part in parts))
    return next(found, "arithmetic")


def table(options: OperationOptions) -> str:
    """Operators of one step by kind, a column for each dtype."""
    columns = []
    for dtype in DTYPES:
        model = model_in(options.size, dtype)
        short, long = (calls(model, options.batch_size, tokens) for tokens in (SHORT, LONG))
        column: Counter[str] = Counter()
        for name, count in (long - short).items():
            column[name if options.names else kind_of(name)] += count
        columns.append(column)
    kinds = sorted(set().union(*columns), key=lambda kind: -columns[-1][kind])
    per_step = [[column[kind] / (LONG - SHORT) for column in columns] for kind in kinds]
    counted = zip(kinds, per_step, strict=True)
    rows = [
        [f"operators of a step, {options.size}", *DTYPES],
        ["---"] * (1 + len(DTYPES)),
        *([kind, *(f"{count:g}" for count in counts)] for kind, counts in counted),
        ["all", *(f"{sum(of_dtype):g}" for of_dtype in zip(*per_step, strict=True))],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(run(table, OperationOptions))
