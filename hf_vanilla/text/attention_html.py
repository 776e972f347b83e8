"""Attention weights as one piece of HTML, to read head by head in a notebook (3.2.3).

It has no script and loads nothing: radio buttons choose a head, so it works in Jupyter, in a page
exported from a notebook, by mouse, keyboard and touch. Without its style all heads are listed.
"""

from html import escape
from itertools import count

from torch import Tensor

from .attentions import Attentions
from .plot import KINDS

MOST_CELLS = 20_000
_numbers = count(1)  # two pieces on one page must not share their radio buttons
_STYLE = """
.ID input { margin: 0 4px 0 0; }
.ID > label { display: inline-block; margin: 0 12px 8px 0; padding: 4px 0; white-space: nowrap; }
.ID > div { clear: both; overflow-x: auto; }
.ID figure { display: none; margin: 0; }
.ID table { border-collapse: collapse; width: auto; margin: 8px 0; font-size: 13px; }
.ID th { padding: 2px 6px; font-weight: 400; text-align: right; white-space: nowrap; border: 0; }
.ID thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; }
.ID td { min-width: 28px; height: 26px; padding: 0 2px; text-align: center; }
.ID td { border: 1px solid #8884; }
.ID tbody tr:hover > * { outline: 2px solid #b45309; outline-offset: -1px; }
"""


def attention_html(seen: Attentions, *, kind: str = "cross") -> str:
    """The weights of every head, and of the mean of each layer, in percent.

    Args:
        seen: attention weights of one sentence.
        kind: `"cross"`, `"encoder"` or `"decoder"`.

    Raises:
        ValueError: the kind is unknown, or there are too many weights to read.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    weights: Tensor = getattr(seen, kind)  # (L, H, queries, keys)
    layers, heads, queries, keys = weights.shape
    if layers * (heads + 1) * queries * keys > MOST_CELLS:
        raise ValueError(
            f"{layers} layers of {heads} heads for {queries} x {keys} tokens are more than "
            f"{MOST_CELLS:,} weights: give a shorter sentence, or use plot_attention"
        )
    sides = (seen.source if kind == "encoder" else seen.target,
             seen.read if kind == "decoder" else seen.source)  # fmt: skip
    shown = {}
    for layer in range(layers):
        shown[f"layer {layer}, mean"] = weights[layer].mean(0)
        shown |= {f"layer {layer}, head {h}": weights[layer, h] for h in range(heads)}
    start = f"layer {layers - 1}, mean"
    return _choices(f"attention-{next(_numbers)}", shown, sides, start, kind)


def _choices(
    name: str,
    shown: dict[str, Tensor],
    sides: tuple[list[str], list[str]],
    start: str,
    kind: str,
) -> str:
    """Radio buttons, and a table for each that shows while its button is chosen."""
    title, row, column = KINDS[kind]
    style = _STYLE.strip().replace("ID", name)
    buttons, tables = [], []
    for number, (label, weights) in enumerate(shown.items(), start=1):
        checked = " checked" if label == start else ""
        key = f"{name}-{number}"
        style += f"\n#{key}:checked ~ div > figure:nth-child({number}) {{ display: block; }}"
        buttons.append(
            f'<input type="radio" name="{name}" id="{key}"{checked}>'
            f'<label for="{key}">{label}</label>'
        )
        tables.append(
            f"<figure><figcaption>{title}, {label}</figcaption>{_table(weights, *sides)}</figure>"
        )
    how = f"Rows: {row}. Columns: {column}. Numbers are percent; a row adds up to 100."
    parts = [f"<style>{style}</style>", *buttons, f"<div>{''.join(tables)}</div><p>{how}</p>"]
    return f'<div class="{name}">{"".join(parts)}</div>'


def _table(weights: Tensor, queries: list[str], keys: list[str]) -> str:
    """The weights `(queries, keys)` of one head."""
    head = "".join(f'<th scope="col">{escape(key)}</th>' for key in keys)
    rows = []
    for query, row in zip(queries, weights.tolist(), strict=True):
        cells = "".join(
            _cell(weight, f"{query} → {key}") for weight, key in zip(row, keys, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(query)}</th>{cells}</tr>')
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(weight: float, pair: str) -> str:
    """One weight: a larger one is a stronger blue, readable on light and on dark pages."""
    percent = round(100 * weight)
    ink = "; color: #0f172a" if weight > 0.5 else ""
    style = f"background: rgba(96, 165, 250, {weight:.2f}){ink}"
    return f'<td style="{style}" title="{escape(pair)}: {percent} %">{percent or ""}</td>'
