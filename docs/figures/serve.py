"""Cost and rate of the service, from the table in docs/serve.md.

python docs/figures/serve.py
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from hf_vanilla.commands import run
from hf_vanilla.plots.figures import (
    THEMES,
    check_output,
    figure_style,
    new_figure,
    save_figure,
)

PAGE = Path(__file__).resolve().parent.parent / "serve.md"


def main(options: argparse.Namespace) -> None:
    """Draw the table."""
    path = check_output(options.output, overwrite=True, theme=options.theme)
    save_costs(PAGE.read_text(encoding="utf-8"), path, theme=options.theme)
    print(path)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """What is drawn, and where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="serve.png", help=".png or .svg, is replaced")
    parser.add_argument("--theme", default="light", choices=THEMES)
    return parser.parse_args(arguments)


def save_costs(page: str, path: Path, *, theme: str = "light") -> None:
    """Save the CPU time of a sentence against sentences per second, one line for each model.

    Args:
        page: has a row `| N clients | RATE; MILLISECONDS | ...` for each number of clients, below
            the row with the models' names.
        path: file of the figure.
        theme: `"light"` or `"dark"`.
    """
    (head,) = re.findall(r"^\| sentences/s; CPU ms of a sentence \| (.+) \|$", page, re.MULTILINE)
    rows = re.findall(r"^\| (\d+) clients? \| (.+) \|$", page, re.MULTILINE)
    with figure_style(theme):
        figure = new_figure((8, 4.5))
        axes = figure.subplots()
        for column, name in enumerate(head.split(" | ")):
            cells = [row.split(" | ")[column].split("; ") for _, row in rows]
            points = [(float(rate), float(cost)) for rate, cost in cells]
            axes.plot(*zip(*points, strict=True), "o-", label=name.replace("`", ""))
            for (clients, _), point in zip(rows, points, strict=True):
                style = {"textcoords": "offset points", "xytext": (6, 5), "fontsize": 9}
                axes.annotate(clients, point, **style)
        axes.set(
            title="More clients share batches: cost of a sentence by number of clients",
            xlabel="sentences per second",
            ylabel="CPU milliseconds of a sentence",
            xscale="log",
            yscale="log",
        )
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(visible=True)
        axes.legend(loc="upper right")
        save_figure(figure, path)


if __name__ == "__main__":
    run(main, read_options)
