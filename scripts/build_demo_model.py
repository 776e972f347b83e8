"""Train the model that comes with the package, and write its files into the package.

The weights are those of the recipe `numbers`, rounded to bfloat16; they load as float32. A trained
folder is used if `--model` names one.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hf_vanilla.commands import run
from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.corpus import built_in_corpus
from hf_vanilla.files import write_files, write_text
from hf_vanilla.text.alignment_files import NUMBERS, validation_numbers
from hf_vanilla.text.alignments import error_rates, save_head
from hf_vanilla.text.loading import FACTS, FILES, load_translator
from hf_vanilla.text.translator import translate
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.recipe_files import shipped_recipes
from hf_vanilla.training.run import train

RECIPE = "numbers"
COPIED = ("README.md", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Write the demo model into the package."""

    model: str | None = field(
        default=None, metadata={"help": "folder trained by the recipe numbers; default: train now"}
    )


def build(options: BuildOptions) -> str:
    """Write the files; returns the score of the rounded weights."""
    trained = Path(options.model or train(read_recipe(["--recipe", RECIPE])))
    FILES.mkdir(exist_ok=True)
    write_files(FILES, lambda folder: write_rounded(trained, folder))
    model, tokenizer = load_translator(str(FILES))
    unseen = built_in_corpus()["test"]
    found = translate(model, tokenizer, unseen["source"][:], progress=True)
    scores = score_translations(found, unseen["target"][:], tokenize="char")
    facts = {
        "recipe_sha256": recipe_hash(),
        "exact_match": scores.exact_match,
    }
    write_text(FILES / FACTS, json.dumps(facts, indent=1) + "\n")
    rates = error_rates(model, tokenizer, validation_numbers())
    save_head(FILES, rates, f"{NUMBERS}, {len(validation_numbers())} pairs")
    return str(scores)


def recipe_hash() -> str:
    """SHA-256 of the recipe's file."""
    return hashlib.sha256(shipped_recipes()[RECIPE].read_bytes()).hexdigest()


def write_rounded(trained: Path, folder: Path) -> None:
    """Copy a model folder without its code, the weights rounded to bfloat16."""
    for name in COPIED:
        shutil.copy(trained / name, folder / name)
    model, _ = load_translator(str(trained))
    model.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    print(run(build, BuildOptions))
