"""What it costs to translate with other position frequencies than those of the training.

    python scripts/benchmarks/position_frequencies.py --models FOLDER ... --source FILE \
        --reference FILE

Marian trains with the frequencies of tensor2tensor, 10000^(-i/(d/2-1)); MarianMTModel of
transformers evaluates the same weights with the paper's, 10000^(-2i/d). Layout, first position and
scale are equal. Each model translates with both, and BLEU is printed by the words of the source.
"""

import argparse

import numpy as np
from length_bleu import LengthBleu, length_bleu

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.data.lines import read_pairs
from hf_vanilla.models.positions_vanilla import POSITION_FREQUENCIES
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import translate


def main() -> None:
    """Print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, help="model folders")
    parser.add_argument("--source", required=True, help="file of source sentences")
    parser.add_argument("--reference", required=True, help="file of their translations")
    parser.add_argument("--edges", nargs="*", type=int, default=[], help="longest of each bin")
    parser.add_argument("--num_beams", type=int, default=None, help="default: the model's own")
    options = parser.parse_args()
    pairs = list(read_pairs(options.source, options.reference))
    sources, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
    for name in options.models:
        trained, systems = translations(name, sources, num_beams=options.num_beams)
        found = length_bleu(
            [len(source.split()) for source in sources], references, systems, edges=options.edges
        )
        print(f"\n{name}, trained with position_frequencies={trained}\n")
        print(table(found, trained))
        same = np.mean([a == b for a, b in zip(*systems.values(), strict=True)])
        print(f"\n{same:.1%} of the translations are equal.")


def translations(
    name: str, sources: list[str], *, num_beams: int | None
) -> tuple[str, dict[str, list[str]]]:
    """The frequencies of a model's training, and its translations with each kind of frequencies."""
    model, tokenizer = load_translator(name)
    trained, found = model.config.position_frequencies, {}
    for frequencies in POSITION_FREQUENCIES:
        changed = VanillaForConditionalGeneration.from_pretrained(
            name, position_frequencies=frequencies
        )
        changes = {} if num_beams is None else {"num_beams": num_beams}
        found[frequencies] = translate(changed.eval(), tokenizer, sources, **changes)
    return trained, found


def table(found: LengthBleu, trained: str) -> str:
    """BLEU by length: as trained, with the other frequencies, and the difference."""
    (other,) = (name for name in found.scores if name != trained)
    lines = [f"| words | sentences | {trained} | {other} | difference |", "|---|---|---|---|---|"]
    rows = [
        (words, count, found.scores[trained][number], found.scores[other][number])
        for number, (words, count) in enumerate(zip(found.bins, found.counts, strict=True))
    ]
    for words, count, own, changed in [
        *rows,
        ("all", sum(found.counts), found.whole[trained], found.whole[other]),
    ]:
        if own is not None and changed is not None:
            cells = f"{own.bleu:.2f} | {changed.bleu:.2f} | {changed.bleu - own.bleu:+.2f}"
            lines.append(f"| {words} | {count} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
