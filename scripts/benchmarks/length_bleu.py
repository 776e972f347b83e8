"""Figure of BLEU by the length of the source, for one system or several.

scripts/benchmarks/length_bleu.py --source test.en --reference test.de --translations mine.de
"""

import argparse
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from hf_vanilla.commands import run
from hf_vanilla.data.bleu import Scores, check_bleu_tokenizer, score_translations
from hf_vanilla.data.lines import read_lines, read_pairs
from hf_vanilla.plots.figures import (
    check_output,
    figure_style,
    new_figure,
    save_figure,
    short_names,
)

MOST_BINS = 8
ROUND_WIDTHS = (1, 2, 5)


@dataclass(frozen=True)
class LengthBleu:
    """Scores by length.

    Attributes:
        edges: longest length of each bin but the last, which is open.
        counts: sentences in each bin.
        scores: of each system, in each bin; None where it is empty.
        whole: of each system, over all sentences.
    """

    edges: list[int]
    counts: list[int]
    scores: dict[str, list[Scores | None]]
    whole: dict[str, Scores]

    @property
    def bins(self) -> list[str]:
        """Names of the bins, such as `≤5`, `6-10`, `>10`."""
        if not self.edges:
            return ["all"]
        between = [
            f"{low + 1}-{high}" if low + 1 < high else f"{high}"
            for low, high in pairwise(self.edges)
        ]
        return [f"≤{self.edges[0]}", *between, f">{self.edges[-1]}"]


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True, help="file of source sentences, plain or .gz")
    parser.add_argument("--reference", required=True, help="file of their translations")
    parser.add_argument("--translations", nargs="+", required=True, help="a file for each system")
    parser.add_argument("--unit", default="words", choices=("words", "characters"))
    parser.add_argument("--edges", nargs="*", type=int, default=[], help="longest of each bin")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's tokenizer")
    parser.add_argument("--output", default="length_bleu.png", help=".png or .svg, is replaced")
    options = parser.parse_args(arguments)
    if any(low >= high for low, high in pairwise([0, *options.edges])):
        parser.error(f"--edges {options.edges}: give rising positive numbers, such as 10 20 30")
    return options


def main(options: argparse.Namespace) -> None:
    """Score translations by the length of their sources and save a figure."""
    path = check_output(options.output, overwrite=True)
    check_bleu_tokenizer(options.tokenize)
    names = short_names(options.translations)
    pairs = list(read_pairs(options.source, options.reference))
    sources = [pair["source"] for pair in pairs]
    systems = [_read_as_many(name, len(pairs)) for name in options.translations]
    by_length = length_bleu(
        [len(source.split() if options.unit == "words" else source) for source in sources],
        [pair["target"] for pair in pairs],
        dict(zip(names, systems, strict=True)),
        edges=options.edges,
        score=partial(score_translations, tokenize=options.tokenize),
    )
    save_length_bleu(by_length, path, unit=options.unit)
    print(path)


def _read_as_many(name: str, count: int) -> list[str]:
    lines = list(read_lines(name))
    if len(lines) != count:
        raise ValueError(f"{name} has {len(lines):,} lines, and there are {count:,} sources")
    return lines


def length_bleu(
    lengths: Sequence[int],
    references: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    *,
    edges: Sequence[int] = (),
    score: Callable[[Sequence[str], Sequence[str]], Scores] = score_translations,
) -> LengthBleu:
    """Corpus BLEU of each system within each bin of length.

    Args:
        lengths: of the sources, one for each sentence.
        references: as many.
        systems: as many translations, by name of the system.
        edges: longest length of each bin but the last; none: `round_edges` of the lengths.
        score: translations and references to scores.
    """
    edges = list(edges) or round_edges(lengths)
    members: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for index, length in enumerate(lengths):
        members[bisect_left(edges, length)].append(index)
    return LengthBleu(
        edges=edges,
        counts=[len(rows) for rows in members],
        scores={
            name: [
                score([texts[i] for i in rows], [references[i] for i in rows]) if rows else None
                for rows in members
            ]
            for name, texts in systems.items()
        },
        whole={name: score(texts, references) for name, texts in systems.items()},
    )


def round_edges(lengths: Sequence[int]) -> list[int]:
    """Edges of equal round steps: at most 8 bins, the last with the longest twentieth at least."""
    common = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    widths = (step * 10**power for power in range(len(str(common)) + 1) for step in ROUND_WIDTHS)
    width = next(width for width in widths if width * (MOST_BINS - 1) >= common)
    return list(range(width, max(common, width + 1), width))


def save_length_bleu(by_length: LengthBleu, path: Path, *, unit: str = "words") -> None:
    """Save BLEU by bin, a curve for each system, above the number of sentences in each bin.

    Args:
        by_length: scores by length.
        path: file of the figure.
        unit: what a length counts.
    """
    with figure_style() as colours:
        figure = new_figure((7.5, 5.2))
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        bins = range(len(by_length.bins))
        for name, scores in by_length.scores.items():
            bleu = [float("nan") if score is None else score.bleu for score in scores]
            upper.plot(bins, bleu, "o-", label=f"{name}: {by_length.whole[name].bleu:.1f} in all")
        upper.set(ylabel="BLEU", ylim=(0, None))
        upper.legend()
        upper.grid(visible=True)
        bars = lower.bar(bins, by_length.counts, color=colours.faint)
        lower.bar_label(bars, [f"{count:,}" for count in by_length.counts], fontsize=8)
        lower.margins(y=0.25)
        lower.set(ylabel="sentences", xlabel=f"{unit} of the source")
        lower.set_xticks(bins, by_length.bins)
        figure.suptitle("BLEU by length of the source; few sentences in a bin say little")
        signature = next(iter(by_length.whole.values())).bleu_signature
        figure.text(0.99, 0.005, signature, ha="right", va="bottom", fontsize=6)
        save_figure(figure, path)


if __name__ == "__main__":
    run(main, read_options)
