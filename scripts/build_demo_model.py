"""Write a model that comes with the package into the package, from the folder of a trained one.

    python scripts/build_demo_model.py
    python scripts/build_demo_model.py --name help-en-de --model runs/help_ende \
        --data libreoffice_help

The weights of `numbers` are rounded to bfloat16; without `--model` they are trained now. Those of
`help-en-de` are int8, a file of 5.5 MB. Both load as float32. The scores on unseen data are those
of the written files.
"""

import hashlib
import html
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_vanilla.commands import run
from hf_vanilla.data.bleu import Scores, score_translations
from hf_vanilla.data.corpus import built_in_corpus
from hf_vanilla.data.lines import read_pairs
from hf_vanilla.files import write_files, write_text
from hf_vanilla.loading import DEMO_MODELS
from hf_vanilla.models.quantization_vanilla import quantize
from hf_vanilla.options import Options, option
from hf_vanilla.text.alignments import AlignedPair, error_rates, save_head
from hf_vanilla.text.loading import FACTS, load_translator
from hf_vanilla.text.markup import Node, parts, take_out
from hf_vanilla.text.pair_files import validation_numbers
from hf_vanilla.text.translator import translate
from hf_vanilla.training.recipe import read_recipe, shipped_recipes
from hf_vanilla.training.run import train

NUMBERS = "numbers"
RECIPES = {NUMBERS: "numbers", "help-en-de": "help_ende"}
COPIED = ("README.md", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
TRAINED_ON = {
    NUMBERS: "number words from 0 to 999,999",
    "help-en-de": "the help and the user interface of LibreOffice 7.4.7",
}
EXAMPLES = {
    NUMBERS: [
        "seven hundred forty-two thousand three hundred nineteen",
        "forty-two",
        "one thousand nine",
    ],
    "help-en-de": [
        "Enter the name of the file that you want to open.",
        "To hide a section, select the Hide check box.",
        "Select the text that you want to copy.",
    ],
}
# of help-en-de, before the sections of training and of limits
DATA = """\
## Data and license

Paragraphs of the help of LibreOffice 7.4.7, and texts of its user interface, in English and German.
Copyright LibreOffice contributors, Mozilla Public License 2.0; the weights are under the same
license. `scripts/libreoffice_help.py --ui` writes the files. They are split by page of the help: 80
pages for validation, 120 for the test; 120 others are in no file. Texts of the user interface are
training data only.

## Scores on the test data

Of these weights, int8 with one scale per row, on 1,402 paragraphs of the 120 pages:

```
{scores}
```

"""
LIMITS = """\
It knows the language of software help and nothing else: letters, news and conversation come out
wrong. Words that the help does not have are invented or left out, and so are names of menus that it
has never seen. It translates one paragraph at a time, English to German only.
Check its output before anyone relies on it.
"""


@dataclass(frozen=True, kw_only=True)
class BuildOptions(Options):
    """Write a model of the package into the package."""

    name: str = option(NUMBERS, "of the model", choices=tuple(RECIPES))
    model: str | None = option(None, "folder trained by its recipe; numbers: trained now")
    data: str | None = option(None, "folder of scripts/libreoffice_help.py, for help-en-de")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name != NUMBERS and not (self.model and self.data):
            raise ValueError(f"name={self.name!r}: give --model and --data")


def build(options: BuildOptions) -> str:
    """Write the files; returns the scores of the written weights."""
    name, folder = options.name, Path(DEMO_MODELS[options.name])
    trained = Path(options.model or train(read_recipe(["--recipe", RECIPES[name]])))
    folder.mkdir(exist_ok=True)
    write_files(folder, lambda new: write_small(trained, new, is_int8=name != NUMBERS))
    model, tokenizer = load_translator(str(folder))
    if name == NUMBERS:
        unseen, gold = built_in_corpus()["test"], validation_numbers()
        pairs = list(zip(unseen["source"], unseen["target"], strict=True))
        aligned_on = f"numbers, {len(gold)} pairs"
    else:
        data = Path(str(options.data))
        pairs = sides(data, "test")
        gold = [gold_of_tags(*pair) for pair in sides(data, "valid.tags") if "<" in pair[0]]
        aligned_on = f"tags of valid, {len(gold)} pairs"
    sources, references = [one for one, _ in pairs], [one for _, one in pairs]
    found = translate(model, tokenizer, sources, progress=True)
    scores = score_translations(found, references, tokenize="char" if name == NUMBERS else "13a")
    facts = {
        "recipe_sha256": recipe_hash(name),
        "exact_match": scores.exact_match,
        "bleu": round(scores.bleu, 2),
        "chrf": round(scores.chrf, 2),
        "examples": EXAMPLES[name],
    }
    write_text(folder / FACTS, json.dumps(facts, indent=1) + "\n")
    save_head(folder, error_rates(model, tokenizer, gold), aligned_on)
    write_card(folder / "README.md", name, scores)
    return str(scores)


def recipe_hash(name: str) -> str:
    """SHA-256 of the recipe's file."""
    return hashlib.sha256(shipped_recipes()[RECIPES[name]].read_bytes()).hexdigest()


def sides(data: Path, part: str) -> list[tuple[str, str]]:
    """The pairs of a part of the help."""
    rows = read_pairs(str(data / f"{part}.en.gz"), str(data / f"{part}.de.gz"))
    return [(html.unescape(row["source"]), html.unescape(row["target"])) for row in rows]


def gold_of_tags(source: str, target: str) -> AlignedPair:
    """What tags say of an alignment: a link is right where both ends are in the same pair of tags.

    Pairs of tags with equal texts are the same, and so is a tag that both sides have once more.
    """
    texts = take_out(source), take_out(target)
    spans = [parts(text.plain) for text in texts]
    inside = [
        [(node.items[0].text, one.plain[of[node.first][0] : of[node.last - 1][1]], node)
         for node in pairs_of_tags(one.root)]
        for one, of in zip(texts, spans, strict=True)
    ]  # fmt: skip
    labels: list[list[int | None]] = [[0] * len(of) for of in spans]
    same = list(same_spans(*inside))
    for side, found in enumerate(inside):
        numbers = {id(pair[side]): number for number, pair in enumerate(same, start=1)}
        for _, _, node in found:
            for word in range(node.first, node.last):
                labels[side][word] = numbers.get(id(node))
    links = frozenset(
        (i, j)
        for i, ours in enumerate(labels[0])
        for j, theirs in enumerate(labels[1])
        if ours == theirs or None in (ours, theirs)
    )
    return AlignedPair(
        texts[0].plain, texts[1].plain, tuple(spans[0]), tuple(spans[1]), frozenset(), links
    )


Tagged = tuple[str, str, Node]


def pairs_of_tags(node: Node) -> Iterator[Node]:
    """The pairs of tags around words, outer ones first."""
    for child in node.children:
        if len(child.items) > 1 and child.first < child.last:
            yield child
        yield from pairs_of_tags(child)


def same_spans(ours: Sequence[Tagged], theirs: Sequence[Tagged]) -> Iterator[tuple[Node, Node]]:
    """The pairs of tags of a source with those of a target that translate them."""
    left, right = list(ours), list(theirs)
    for key in (lambda one: one[:2], lambda one: one[0]):
        for one in list(left):
            like = [other for other in right if key(other) == key(one)]
            if len(like) == 1 == sum(key(other) == key(one) for other in left):
                left.remove(one)
                right.remove(like[0])
                yield one[2], like[0][2]


def write_small(trained: Path, folder: Path, *, is_int8: bool) -> None:
    """Copy a model folder without its code, the weights rounded; they load as float32."""
    for name in COPIED:
        shutil.copy(trained / name, folder / name)
    model, _ = load_translator(str(trained), dtype="float32", device=torch.device("cpu"))
    (quantize(model) if is_int8 else model.to(torch.bfloat16)).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    if is_int8:
        config["quantization_config"]["dequantize"] = True
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_card(path: Path, name: str, scores: Scores) -> None:
    """Complete the card of a run: its name, its data, and the scores of these weights."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(# |- name: |model_name: )\w+$", rf"\g<1>{name}", text)
    text = re.sub(r"(?m)^- Trained on: .*\n", "", text)
    text = re.sub(r"(?m)^(- Translates: .*\n)", rf"\1- Trained on: {TRAINED_ON[name]}\n", text)
    if name != NUMBERS:
        before, training, after = text.partition("## Training\n")
        text = before + DATA.format(scores=scores) + training + after
        text = text.partition("## Limits\n")[0] + f"## Limits\n\n{LIMITS}"
    write_text(path, text)


if __name__ == "__main__":
    print(run(build, BuildOptions))
