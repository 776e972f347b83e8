"""Foreign names of weights to ours and back, and a model folder that appears whole or not at all.

A format is a table of names. Its keys are foreign names, its values ours, and `{n}` or any other
word in braces stands for the same piece between dots on both sides:

    {"encoder.layers.{n}.norm1.{kind}": "model.encoder.layers.{n}.self_attn_layer_norm.{kind}",
     "encoder.layers.{n}.in_proj_{kind}": (q, k, v),  # cut in equal parts along the first axis
     "encoder.version": None}                          # says nothing that our config does not say
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

Names = Mapping[str, str | tuple[str, ...] | None]
_Row = tuple[tuple[str, ...], tuple[str, ...]]
_BRACES = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """Weights under their new names, and what became of the others.

    Attributes:
        weights: by new name.
        origins: the old names of each new one, for messages.
        left_over: old names that no row of the table knows.
        problems: sentences about weights that cannot be renamed.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def rename_to_ours(weights: Mapping[str, Tensor], names: Names) -> Renamed:
    """A whole foreign state dict under our names.

    Two foreign tensors may become one of ours, as tied weights that were stored twice do, if they
    are equal to the last bit.
    """
    rows: list[_Row] = [((theirs,), _as_tuple(ours)) for theirs, ours in names.items()]
    return _rename(weights, rows)


def rename_to_theirs(weights: Mapping[str, Tensor], names: Names) -> Renamed:
    """A whole state dict of ours under the foreign names: `rename_to_ours` read backwards.

    One of ours goes to every foreign name that the table gives for it.
    """
    rows: list[_Row] = [
        (_as_tuple(ours), (theirs,)) for theirs, ours in names.items() if ours is not None
    ]
    return _rename(weights, rows)


def load_renamed(
    model: PreTrainedModel,
    renamed: Renamed,
    *,
    origin: str,
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Put every weight in its place in a model, or none.

    Of weights that are tied in the model one is enough; more of them must be equal.

    Args:
        model: of the shape that the config says.
        renamed: all its weights, in its dtype or one that fits into it without loss.
        origin: where they come from, for the message.
        reasons: patterns of foreign names, and why a tensor of such a name cannot be had.

    Raises:
        ValueError: weights are left over, missing, or wrong in shape or dtype; the message names
            them all.
    """
    tied = model.all_tied_weights_keys
    places = {name: weight for name, weight in model.state_dict().items() if name not in tied}
    found = Renamed(left_over=[*renamed.left_over], problems=[*renamed.problems])
    for name, weight in renamed.weights.items():
        place = tied.get(name, name)
        if place in places:
            _put(found, place, weight, renamed.origins[name])
        else:
            found.left_over.append(renamed.origins[name])
    complaints = {
        "left over": _explained(sorted(found.left_over), reasons or {}),
        "missing": sorted(places.keys() - found.weights.keys()),
        "wrong": [
            f"{found.origins[name]} ({fault})"
            for name, weight in sorted(found.weights.items())
            if (fault := _misfit(weight, places[name]))
        ],
        "unclear": found.problems,
    }
    told = [f"{what}: {', '.join(names)}" for what, names in complaints.items() if names]
    if told:
        raise ValueError(f"{origin} does not fit this architecture; " + "; ".join(told))
    model.load_state_dict(found.weights, strict=False)


def is_zero_at(row: int | None, *tables: Tensor) -> bool:
    """Whether tables look one id up as zeros without being told to."""
    return row is None or not any(table[row : row + 1].any() for table in tables)


# --- inside ------------------------------------------------------------------------------------


def _as_tuple(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()


def _rename(weights: Mapping[str, Tensor], rows: list[_Row]) -> Renamed:
    """Join the tensors of each row's left side along the first axis and cut them for its right."""
    renamed = Renamed()
    matchers = [[_expression(pattern) for pattern in row[0]] for row in rows]
    # by row and by what stands in the braces: the tensors that go through the row together
    groups: dict[tuple[int, tuple[tuple[str, str], ...]], dict[int, str]] = defaultdict(dict)
    for name in weights:
        is_known = False
        for number, row in enumerate(matchers):
            for place, expression in enumerate(row):
                if match := expression.fullmatch(name):
                    groups[number, tuple(sorted(match.groupdict().items()))][place] = name
                    is_known = True
        if not is_known:
            renamed.left_over.append(name)
    for (number, braces), members in groups.items():
        sources, targets = rows[number]
        _move(
            weights,
            [members.get(place, "") for place in range(len(sources))],
            [pattern.format(**dict(braces)) for pattern in targets],
            renamed,
        )
    return renamed


def _move(
    weights: Mapping[str, Tensor], sources: list[str], targets: list[str], renamed: Renamed
) -> None:
    told = " + ".join(name for name in sources if name)
    if not all(sources):
        renamed.problems.append(f"{told} without the {len(sources)} parts that belong together")
        return
    if not targets:
        return
    parts = [weights[name] for name in sources]
    whole = torch.cat(parts) if len(parts) > 1 else parts[0]
    if len(targets) > 1 and (not whole.dim() or whole.shape[0] % len(targets)):
        shape = tuple(whole.shape)
        renamed.problems.append(f"{told} {shape} cannot be cut in {len(targets)} equal parts")
        return
    # a cut tensor is a view of the whole, which a checkpoint would store with it
    cuts = [cut.clone() for cut in whole.chunk(len(targets))] if len(targets) > 1 else [whole]
    for target, cut in zip(targets, cuts, strict=True):
        _put(renamed, target, cut, told)


def _put(renamed: Renamed, name: str, weight: Tensor, origin: str) -> None:
    """A second weight of the same name must be the first one again."""
    earlier = renamed.weights.setdefault(name, weight)
    first = renamed.origins.setdefault(name, origin)
    is_same = earlier.dtype == weight.dtype and torch.equal(earlier, weight)
    if earlier is not weight and not is_same:
        renamed.problems.append(f"{first} and {origin} are one weight here, but they differ")


def _expression(pattern: str) -> re.Pattern[str]:
    pieces = _BRACES.split(pattern)
    return re.compile(
        "".join(
            f"(?P<{piece}>[^.]+)" if number % 2 else re.escape(piece)
            for number, piece in enumerate(pieces)
        )
    )


def _explained(names: list[str], reasons: Mapping[str, str]) -> list[str]:
    return [
        next(
            (
                f"{name} ({why})"
                for what, why in reasons.items()
                if _expression(what).fullmatch(name)
            ),
            name,
        )
        for name in names
    ]


def _misfit(weight: Tensor, place: Tensor) -> str | None:
    if weight.shape != place.shape:
        return f"shape {tuple(weight.shape)}, expected {tuple(place.shape)}"
    if not weight.is_floating_point():
        return f"dtype {weight.dtype}, expected floating point"
    if torch.promote_types(weight.dtype, place.dtype) != place.dtype:
        return f"dtype {weight.dtype} does not fit into {place.dtype} without loss"
    return None
