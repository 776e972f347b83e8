"""Students beside their teacher: scores, and the processor time of translating.

    OMP_NUM_THREADS=1 python scripts/benchmarks/students.py --models TEACHER STUDENT ... \
        --beams 5 1 --source FILE --reference FILE

One row for each model and number of beams; the first row is the teacher's. Times are ratios of
processor time to that row: the same sentences go to every row in turn, and the ratio of a batch
size is the median over such rounds. They include tokenization, but not loading.
"""

import argparse

from hf_vanilla import Translator
from hf_vanilla.convert.distill import times_as_fast
from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.lines import read_pairs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, help="model folders; teacher first")
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 1], help="numbers of beams")
    parser.add_argument("--source", required=True, help="file of source sentences")
    parser.add_argument("--reference", required=True, help="file of their translations")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=5, help="batches of each size")
    options = parser.parse_args()
    if min(options.rounds, *options.batch_sizes, *options.beams) < 1:
        parser.error("give 1 or more for --rounds, --batch_sizes and --beams")
    pairs = list(read_pairs(options.source, options.reference))
    sources, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
    if max(options.batch_sizes) * options.rounds > len(sources):
        parser.error(f"{options.source} has {len(sources)} sentences: give fewer --rounds")
    chosen = [(name, beams) for name in options.models for beams in options.beams]
    translators = [Translator(name, num_beams=beams) for name, beams in chosen]
    speeds = [times_as_fast(translators, sources, n, options.rounds) for n in options.batch_sizes]
    sizes = " | ".join(f"times as fast, {size}" for size in options.batch_sizes)
    print(f"| model | beams | BLEU | chrF2 | of the first | {sizes} |")
    print("|---" * (5 + len(options.batch_sizes)) + "|")
    found = [list(translator.translate(sources)) for translator in translators]
    scores = [score_translations(translations, references) for translations in found]
    for number, ((name, beams), score) in enumerate(zip(chosen, scores, strict=True)):
        times = " | ".join(f"{of_size[number]:.2f}" for of_size in speeds)
        quality = f"{score.bleu:.2f} | {score.chrf:.2f} | {score.chrf / scores[0].chrf:.1%}"
        print(f"| {name} | {beams} | {quality} | {times} |")


if __name__ == "__main__":
    main()
