"""The big recipes on stand-in data: all is as published but the size, and the text of the corpus.

The stand-ins lie where the recipes look: a folder laid out as the set's repository on the Hub, and
files of the names that the recipe tells to make.
"""

import gzip
from pathlib import Path

import pytest
import small_run
import yaml
from datasets import Dataset, Features, Translation
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from hf_vanilla.text.data import load_corpus
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

RECIPES = Path(__file__).resolve().parent.parent.parent / "hf_vanilla" / "recipes"
SMALL = {
    **{f"model.{name}": value for name, value in small_run.MODEL.items()},
    "model.vocab_size": 330,  # enough for whole words of both languages
    "max_length": 40,
    "max_steps": 2,
    "warmup_steps": 1,
    "save_steps": 1,
    "eval_steps": 2,
    "eval_sentences": 3,
    "trackers": "none",
    "tokens_per_step": 240,
    "tokens_per_batch": 120,
    "preprocessing_workers": 1,
    "use_cpu": True,
}


def write_hub_set(folder, config_name, source, target):
    """Parquet files in the layout of `wmt/wmt14`, with its feature and its splits."""
    pairs = [{"translation": {source: a, target: b}} for a, b in small_run.digit_pairs()]
    splits = {"train": pairs[: small_run.TRAIN], "validation": pairs[small_run.TRAIN :]}
    splits["test"] = pairs[:7]
    features = Features({"translation": Translation(languages=config_name.split("-"))})
    files = []
    (folder / config_name).mkdir(parents=True)
    for split, rows in splits.items():
        name = f"{config_name}/{split}-00000-of-00001.parquet"
        Dataset.from_list(rows, features=features).to_parquet(folder / name)
        files.append({"split": split, "path": name})
    card = yaml.safe_dump({"configs": [{"config_name": config_name, "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{card}---\n")


def write_files(folder, recipe):
    for name, path in small_run.write_corpus(folder).items():
        text = Path(path).read_bytes()
        side = name.removeprefix("train_")
        parts = [recipe[name]] if name in recipe else [part[side] for part in recipe["mixture"]]
        for part in parts:
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).write_bytes(gzip.compress(text) if part.endswith(".gz") else text)


@pytest.mark.parametrize(
    "name",
    [
        "wmt14_ende_base",
        "wmt14_ende_big",
        "wmt14_enfr_base",
        "iwslt14_deen",
        "iwslt14_simcut",
        "help_ende",
        "help_multi",
    ],
)
def test_a_recipe_trains_on_stand_in_data_as_it_would_on_its_own(name, tmp_path, monkeypatch):
    path = RECIPES / f"{name}.yaml"
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    if "dataset" in written:
        columns = written["source_column"], written["target_column"]
        write_hub_set(tmp_path / written["dataset"], written["dataset_config"], *columns)
    else:
        write_files(tmp_path, written)
    changes = [f"--{key}={value}" for key, value in SMALL.items()]
    recipe = read_recipe(["--recipe", str(path), *changes])
    source, target = small_run.digit_pairs()[0]
    if recipe.data.mixture is None:
        assert load_corpus(recipe.data)["train"][0] == {"source": source, "target": target}
    folder = train(recipe)
    assert folder == Path("runs") / name
    card = ModelCard.load(folder / "README.md")
    assert card.data.language == [written["source_language"], written["target_language"]]
    assert card.data.eval_results  # the validation split was there, and was scored
    seen = (folder / "tokenizer.json").read_text(encoding="utf-8")
    assert "seven" in seen
    assert "sieben" in seen


def test_bi_simcut_trains_both_directions_and_then_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (RECIPES / f"iwslt14_{name}.yaml" for name in ("both", "simcut"))
    write_files(tmp_path, yaml.safe_load(second.read_text(encoding="utf-8")))
    changes = [f"--{key}={value}" for key, value in SMALL.items()]
    both = train(read_recipe(["--recipe", str(first), *changes]))
    again = [*changes, "--initial_model", str(both)]
    one = train(read_recipe(["--recipe", str(second), *again]))
    seen = (both / "tokenizer.json").read_text(encoding="utf-8")
    assert "seven" in seen
    assert "sieben" in seen
    assert (one / "tokenizer.json").read_text(encoding="utf-8") == seen
    before, after = (load_file(folder / "model.safetensors") for folder in (both, one))
    moved = max((after[name] - before[name]).abs().max().item() for name in before)
    assert 0 < moved < 0.01  # two small updates of the first stage's weights
