"""Tags carried over by word alignment, beside tags at the same share of the length.

    python scripts/benchmarks/markup.py --model runs/help_ende \
        --source libreoffice_help/test.tags.en.gz --reference libreoffice_help/test.tags.de.gz

Prints a Markdown table, by the scores of `hf-vanilla evaluate`, of the lines whose reference has
tags. Both rows have the same words.
"""

import argparse
import html
from itertools import takewhile
from pathlib import Path

from hf_vanilla import Translator
from hf_vanilla.data.lines import read_pairs
from hf_vanilla.text.evaluation import score_markup, tagged_spans
from hf_vanilla.text.markup import TAG_NAME
from hf_vanilla.text.text_translator import TextTranslator


def tags_by_share(source: str, translation: str) -> str:
    """The words of a translation with the tags of the source at the same share of its words."""
    words = tagged_spans(translation)[0]
    length = max(len(tagged_spans(source)[0]), 1)
    gaps: list[list[str]] = [[] for _ in range(len(words) + 1)]
    plain, last = "", 0
    for tag in TAG_NAME.finditer(source):
        plain += source[last : tag.start()]
        last = tag.end()
        gaps[round(len(plain.split()) * len(words) / length)].append(tag.group())
    text = ""
    for word, tags in zip([*words, ""], gaps, strict=True):
        closing = list(takewhile(lambda tag: tag.startswith("</"), tags))
        text += "".join(closing) + " " + "".join(tags[len(closing) :]) + word
    return " ".join(text.split())


def main() -> None:
    """Translate once, place the tags twice, print both scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--show", type=int, default=0, help="lines with errors to print")
    options = parser.parse_args()
    pairs = [
        (html.unescape(row["source"]), html.unescape(row["target"]))
        for row in read_pairs(options.source, options.reference)
        if tagged_spans(row["target"])[1]
    ]
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    texts = TextTranslator(Translator(options.model), keep_markup=True)
    aligned = list(texts.translate(sources, progress=True))
    shared = [tags_by_share(*pair) for pair in zip(sources, aligned, strict=True)]
    print(f"{Path(options.model).name}, {len(pairs)} lines with tags\n")
    print("| tags | well-formed | complete | span F1 | words off |\n|---|---|---|---|---|")
    for name, found in (("word alignment", aligned), ("share of the length", shared)):
        scores = score_markup(found, references)
        counts = f"{scores.well_formed} | {scores.complete}"
        print(f"| {name} | {counts} | {scores.span_f1:.3f} | {scores.shown_distance} |")
    wrong = [row for row in zip(sources, aligned, references, strict=True) if row[1] != row[2]]
    for row in wrong[: options.show]:
        print("", *row, sep="\n")


if __name__ == "__main__":
    main()
