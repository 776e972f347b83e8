"""Distillation and back-translation: a corpus is translated, then a recipe mixes the files."""

import shutil
from pathlib import Path

import pytest
import small_run

from hf_vanilla.data.lines import read_lines
from hf_vanilla.text.corpus_translation import CorpusOptions, translate_corpus
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import translate
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

SMALL = {f"model.{name}": value for name, value in small_run.MODEL.items() if "layers" not in name}
SMALL |= {name: value for name, value in small_run.TRAINING.items() if "language" not in name}


def translated(folder, model, source, **options):
    """The lines of all shards, joined in the order of their names."""
    translate_corpus(
        CorpusOptions(
            model=str(model),
            input=[source],
            output=str(folder),
            lines_per_shard=25,
            num_beams=1,
            **options,
        )
    )
    return [line for file in sorted(folder.glob("*.txt")) for line in read_lines(file)]


@pytest.mark.parametrize(
    ("name", "layers"),
    [("student_6_2", (6, 2)), ("student_12_1", (12, 1)), ("student_from_teacher", (1, 1))],
)
def test_a_student_learns_from_text_and_teacher(
    name, layers, corpus_files, trained_run, tmp_path, monkeypatch
):
    sources = list(read_lines(corpus_files["train_source"]))
    texts = translated(tmp_path / "shards", trained_run, corpus_files["train_source"])
    assert texts == translate(*load_translator(str(trained_run)), sources, num_beams=1)
    (tmp_path / "train.teacher.de").write_text("".join(f"{line}\n" for line in texts))
    for option, path in corpus_files.items():
        split, side = option.split("_")
        language = {"source": "en", "target": "de"}[side]
        shutil.copy(path, tmp_path / f"{split.removesuffix('idation')}.{language}")
    shutil.copytree(trained_run, tmp_path / "runs" / "student_start")
    monkeypatch.chdir(tmp_path)
    changes = [
        f"--{key}={value}" for key, value in {**SMALL, "max_steps": 2, "warmup_steps": 1}.items()
    ]
    if name == "student_from_teacher":  # it starts with a model of one layer here
        changes.append("--model.decoder_layers=1")
    recipe = read_recipe(["--recipe", name, *changes])
    assert [(part.target, part.weight) for part in recipe.data.corpora] == [
        ("train.de", 1),
        ("train.teacher.de", 2),
    ]
    folder = train(recipe)
    assert folder == Path("runs") / name
    model, _ = load_translator(str(folder))
    assert (model.config.encoder_layers, model.config.decoder_layers) == layers
    assert "train.teacher.de" in (folder / "README.md").read_text()


def test_sampled_sources_of_back_translation_repeat_by_seed(corpus_files, trained_run, tmp_path):
    lines = list(read_lines(corpus_files["train_source"]))[:9]
    (tmp_path / "mono").write_text("".join(f"{line}\n" for line in lines))
    sampling = {"generation": {"do_sample": True, "temperature": 2.0, "max_new_tokens": 7}}
    one, again, other = (
        translated(tmp_path / name, trained_run, str(tmp_path / "mono"), seed=seed, **sampling)
        for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    assert len(one) == len(lines)
    assert one == again
    assert one != other
