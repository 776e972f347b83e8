"""Rename the weights of other toolkits to our names and back.

A format is a table of names. Its keys are the other toolkit's names, its values ours. `{n}` or any
other word in braces stands for the same part between dots on both sides:

    {"encoder.layers.{n}.norm1.{kind}": "model.encoder.layers.{n}.self_attn_layer_norm.{kind}",
     "encoder.layers.{n}.in_proj_{kind}": (q, k, v),  # split into equal parts along axis 0
     "encoder.version": None}                          # not needed: the config contains it
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_vanilla.models.positions_vanilla import sinusoid

_Side = str | tuple[str, ...] | None
Names = Mapping[str, _Side]
Weights = Mapping[str, Tensor]
_ESCAPED_BRACES = re.compile(r"\\\{(\w+)\\\}")


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """Weights under their new names, and the problems found while renaming.

    Attributes:
        weights: by new name.
        origins: the old names of each new one, for messages.
        left_over: old names that match no row of the table.
        problems: descriptions of weights that cannot be renamed.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def rename_to_ours(weights: Weights, names: Names) -> Renamed:
    """Rename a state dict of another toolkit to our names.

    Two tensors may get the same name, such as tied weights that were stored twice, if they are
    exactly equal.
    """
    return _rename(weights, names.items())


def rename_to_theirs(weights: Weights, names: Names) -> Renamed:
    """Rename a state dict of ours to the other toolkit's names, the inverse of `rename_to_ours`.

    A weight is copied to every name that the table has for it.
    """
    return _rename(weights, [(ours, theirs) for theirs, ours in names.items() if ours])


def add_report(renamed: Renamed, loading: Mapping[str, Any], *, missing: Collection[str]) -> None:
    """Add what transformers reported of the other model's tensors.

    Args:
        renamed: its weights.
        loading: of `from_pretrained(..., output_loading_info=True)`.
        missing: our names of weights that have only an initial value, and are removed.
    """
    for name in missing:
        renamed.weights.pop(name, None)
    renamed.left_over.extend(loading["unexpected_keys"])
    renamed.problems.extend(
        f"{name} (shape {tuple(found)}, expected {tuple(expected)})"
        for name, found, expected in sorted(loading["mismatched_keys"])
    )


def load_renamed(
    model: PreTrainedModel, renamed: Renamed, *, origin: str, reasons: dict[str, str] | None = None
) -> None:
    """Load all renamed weights into a model; if any does not fit, raise and load none.

    Of weights that are tied in the model, one is enough; several must be equal. Tables that the
    model computes and does not save are kept.

    Args:
        model: a new model of the right config.
        renamed: all its weights, in its dtype or one that converts to it without loss.
        origin: where the weights come from, for the message.
        reasons: patterns of names, and why our models have no such weight.

    Raises:
        ValueError: weights are left over, missing, of a wrong shape or dtype, or have NaN; the
            message names all of them.
    """
    tied = model.all_tied_weights_keys
    unsaved = {*tied, *(model._keys_to_ignore_on_save or ())}
    expected = {name: weight for name, weight in model.state_dict().items() if name not in unsaved}
    found = Renamed(left_over=[*renamed.left_over], problems=[*renamed.problems])
    for name, weight in renamed.weights.items():
        target = tied.get(name, name)
        if target in expected:
            _add(found, target, weight, renamed.origins[name])
        else:
            found.left_over.append(renamed.origins[name])
    why = {
        name: f" ({reason})"
        for name in found.left_over
        for pattern, reason in (reasons or {}).items()
        if _expression(pattern).fullmatch(name)
    }
    faults = {
        "left over": [name + why.get(name, "") for name in sorted({*found.left_over})],
        "missing": sorted(expected.keys() - found.weights.keys()),
        "wrong": [
            f"{found.origins[name]} ({fault})"
            for name, weight in sorted(found.weights.items())
            if (fault := _mismatch(weight, expected[name]))
        ],
        "unclear": found.problems,
    }
    lines = [f"{what}: {', '.join(names)}" for what, names in faults.items() if names]
    if lines:
        raise ValueError(f"{origin} does not fit this architecture; " + "; ".join(lines))
    model.load_state_dict(found.weights, strict=False)


def refuse(target: str, reasons: Mapping[str, Any]) -> None:
    """Refuse a model of ours that `target` cannot express.

    Args:
        target: the other format.
        reasons: what may stand in the way, and whether it does.

    Raises:
        ValueError: something does; the message has all of it.
    """
    if found := [reason for reason, applies in reasons.items() if applies]:
        raise ValueError(f"{target} cannot express this model: {'; '.join(found)}")


def with_zero_biases(weights: Weights, *ends: str) -> dict[str, Tensor]:
    """The weights, and zeros for the biases that linear layers do not have.

    Args:
        weights: by name.
        ends: of the names of the layers' weights, such as `"q_proj.weight"`.
    """
    biases = {
        f"{name.removesuffix('weight')}bias": weight.new_zeros(weight.shape[:1])
        for name, weight in weights.items()
        if name.endswith(ends)
    }
    return biases | dict(weights)


def count_layers(names: Iterable[str], prefix: str) -> int:
    """How many different numbers follow `prefix` in names."""
    found = (re.match(rf"{re.escape(prefix)}(\d+)", name) for name in names)
    return len({match[1] for match in found if match})


def torch_layer_names(theirs: str, ours: str) -> Names:
    """The table of all layers of `torch.nn.TransformerEncoder` and `torch.nn.TransformerDecoder`.

    Args:
        theirs: the other toolkit's prefix of a layer, in which `{side}` is encoder or decoder.
        ours: our prefix, likewise.
    """
    own, cross = {"self_attn": "self_attn"}, {"multihead_attn": "encoder_attn"}
    names: dict[str, str | tuple[str, ...]] = {}
    for side, attentions in {"encoder": own, "decoder": own | cross}.items():
        them, us = (prefix.replace("{side}", side) for prefix in (theirs, ours))
        for name, attention in attentions.items():
            for kind in ("weight", "bias"):
                names[f"{them}{name}.in_proj_{kind}"] = tuple(
                    f"{us}{attention}.{part}_proj.{kind}" for part in "qkv"
                )
            names[f"{them}{name}.out_proj.{{kind}}"] = f"{us}{attention}.out_proj.{{kind}}"
        for number, norm in enumerate((*attentions.values(), "final"), start=1):
            names[f"{them}norm{number}.{{kind}}"] = f"{us}{norm}_layer_norm.{{kind}}"
        names[f"{them}linear{{k}}.{{kind}}"] = f"{us}fc{{k}}.{{kind}}"
    return names


def is_zero_at(row: int | None, *tables: Tensor) -> bool:
    """Whether row `row` of all embedding tables is zero; True if `row` is None or not there."""
    return row is None or not any(table[row : row + 1].any() for table in tables)


# --- inside ------------------------------------------------------------------------------------


def _rename(weights: Weights, rows: Iterable[tuple[_Side, _Side]]) -> Renamed:
    """Per row: concatenate the left tensors along axis 0, split them for the right names."""
    renamed, known = Renamed(), set[str]()
    for row in rows:
        sources, targets = ((side,) if isinstance(side, str) else side or () for side in row)
        # values of the braces -> names of the tensors, by position
        groups: dict[tuple[tuple[str, str], ...], dict[int, str]] = defaultdict(dict)
        for position, pattern in enumerate(sources):
            for match in filter(None, map(_expression(pattern).fullmatch, weights)):
                groups[tuple(sorted(match.groupdict().items()))][position] = match[0]
        for braces, members in groups.items():
            known.update(members.values())
            parts = [members.get(position, "") for position in range(len(sources))]
            _move(weights, parts, [name.format(**dict(braces)) for name in targets], renamed)
    renamed.left_over.extend(name for name in weights if name not in known)
    return renamed


def _move(weights: Weights, sources: list[str], targets: list[str], renamed: Renamed) -> None:
    origin = " + ".join(name for name in sources if name)
    if not all(sources):
        renamed.problems.append(f"{origin}: not all of the {len(sources)} parts are there")
        return
    if not targets:
        return
    parts = [weights[name] for name in sources]
    whole = torch.cat(parts) if len(parts) > 1 else parts[0]
    if len(targets) > 1 and (not whole.dim() or whole.shape[0] % len(targets)):
        shape = tuple(whole.shape)
        renamed.problems.append(f"{origin} {shape} cannot be split into {len(targets)} equal parts")
        return
    # clone: a chunk is a view, and a checkpoint would store the whole tensor for each
    parts = [part.clone() for part in whole.chunk(len(targets))] if len(targets) > 1 else [whole]
    for target, part in zip(targets, parts, strict=True):
        _add(renamed, target, part, origin)


def _add(renamed: Renamed, name: str, weight: Tensor, origin: str) -> None:
    """Add a weight; a second weight of the same name must equal the first."""
    earlier = renamed.weights.setdefault(name, weight)
    first = renamed.origins.setdefault(name, origin)
    is_same = earlier.dtype == weight.dtype and torch.equal(earlier, weight)
    if earlier is not weight and not is_same:
        renamed.problems.append(f"{first} and {origin} are tied in our model, but they differ")


def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(_ESCAPED_BRACES.sub(r"(?P<\1>[^.]+)", re.escape(pattern)))


def _mismatch(weight: Tensor, expected: Tensor) -> str | None:
    if weight.shape != expected.shape:
        return f"shape {tuple(weight.shape)}, expected {tuple(expected.shape)}"
    if not weight.is_floating_point():
        return f"dtype {weight.dtype}, expected floating point"
    if torch.promote_types(weight.dtype, expected.dtype) != expected.dtype:
        return f"dtype {weight.dtype} does not convert to {expected.dtype} without loss"
    if weight.isnan().any():
        return "it has NaN: the file is damaged, or its training failed"
    return None


# --- comparisons ---------------------------------------------------------------------------------


def is_sinusoidal(
    table: Tensor, *, layout: str, frequencies: str = "paper", first: int = 0, atol: float = 1e-3
) -> bool:
    """Whether the rows of a position table are sinusoids of their numbers (3.5).

    Args:
        table: `(positions, d_model)`.
        layout: of sine and cosine, as in `VanillaConfig.position_layout`.
        frequencies: as in `VanillaConfig.position_frequencies`.
        first: first row that is compared.
        atol: allowed difference; the default accepts tables in half precision.
    """
    numbers = torch.arange(first, max(first, len(table)))
    expected = sinusoid(numbers, table.shape[1], layout=layout, frequencies=frequencies)
    return torch.allclose(table[first:].double(), expected.double(), rtol=0, atol=atol)


LARGEST_DIFFERENCE = 1e-4  # of the largest value; float32 gives about 1e-6
COMPARED = ("logits", "pred_boxes", "last_hidden_state", "pooler_output")


def require_same_outputs(
    first: PreTrainedModel, second: PreTrainedModel, image_size: Sequence[int]
) -> None:
    """Compare two models on one random image.

    Args:
        first: in evaluation mode and float32.
        second: likewise.
        image_size: height and width in pixels.

    Raises:
        ValueError: an output differs, or is not finite.
    """
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, first.config.num_channels, *image_size, generator=generator)
    with torch.inference_mode():
        found, expected = first(pixel_values=pixels), second(pixel_values=pixels)
    names = [name for name in COMPARED if name in found and name in expected]
    for name in names[:2]:  # a head's outputs, or those of a body
        largest = float(expected[name].abs().max())
        difference = float((found[name] - expected[name]).abs().max())
        if not difference <= LARGEST_DIFFERENCE * largest:  # so that NaN is refused
            raise ValueError(
                f"the converted model differs: {name} of a random image by {difference:.2g}, where "
                f"the largest is {largest:.2g}; nothing was written. The model has a setting that "
                "the other format does not have"
            )
