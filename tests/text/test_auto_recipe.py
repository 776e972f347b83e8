"""`--recipe auto`: settings by the number of pairs, and warnings of settings that cannot work."""

import os
import re
from pathlib import Path

import pytest
import small_run

from hf_vanilla.text.auto_recipe import ROWS
from hf_vanilla.training.preparation import prepare_run
from hf_vanilla.training.recipe import read_recipe

DOCS = Path(__file__).resolve().parents[2] / "docs"


def files(folder, pairs):
    for side in ("source", "target"):
        (folder / side).write_text("a line\n" * pairs, encoding="utf-8")
    return ["--train_source", str(folder / "source"), "--train_target", str(folder / "target")]


def test_the_row_nearest_by_ratio_is_taken_and_told_and_options_override_it(tmp_path, caplog):
    caplog.set_level("INFO")
    for pairs, row in ((1, 0), (1_700, 0), (1_800, 1), (29_000, 3), (60_000, 4)):
        recipe = read_recipe(["--recipe", "auto", *files(tmp_path, pairs)])
        assert recipe.model["vocab_size"] == ROWS[row].vocab_size
        assert recipe.train.max_steps == ROWS[row].max_steps
        assert f"{pairs:,} pairs, settings for {ROWS[row].pairs:,}" in caplog.text
        assert read_recipe(["--recipe", "auto", *files(tmp_path, pairs)]) == recipe
    changed = ["--max_steps", "170", "--model.dropout", "0.4", "--adam.beta2", "0.9"]
    recipe = read_recipe(["--recipe", "auto", *files(tmp_path, 1_000), *changed])
    assert (recipe.train.max_steps, recipe.model["dropout"]) == (170, 0.4)
    assert (recipe.train.adam.beta2, recipe.train.adam.epsilon) == (0.9, 1e-8)
    for row in ROWS:  # each is a recipe that can be built
        assert row.d_model % row.heads == 0
        assert row.warmup_steps < row.max_steps


def test_the_table_of_the_docs_has_these_rows():
    table = (DOCS / "train_your_own.md").read_text(encoding="utf-8")
    written = [
        tuple(float(cell.replace(",", "")) for cell in line.strip("| ").split(" | ")[:10])
        for line in re.findall(r"^\| [\d,]+ \| [\d,]+ \| .*$", table, re.MULTILINE)
    ]
    ours = [
        (
            *(row.pairs, row.vocab_size, row.d_model, row.layers, row.ffn_dim, row.dropout),
            *(row.max_steps, row.warmup_steps, row.learning_rate, row.tokens_per_step),
        )
        for row in ROWS
    ]
    assert written == ours


def test_what_auto_cannot_count_is_one_line(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    cases = (
        ([], "give --train_source and --train_target"),
        (["--train_source", str(pipe), "--train_target", str(pipe)], "pipe is a pipe, but recipe"),
        (["--task", "image_classification", "--dataset", "photos"], "is of task translation"),
        (["--train_source", "nowhere", "--train_target", "nowhere"], "nowhere"),
    )
    for arguments, told in cases:
        with pytest.raises((ValueError, OSError), match=told):
            read_recipe(["--recipe", "auto", *arguments])


def test_a_warmup_beyond_the_training_and_a_step_beyond_the_corpus_are_warned_of(
    tmp_path, corpus_files, caplog
):
    small = small_run.recipe(
        tmp_path / "run", corpus_files, tokens_per_step=4_800, tokens_per_batch=240
    )
    prepare_run(small)
    warned = " ".join(record.message for record in caplog.records if record.levelname == "WARNING")
    assert "warmup_steps=10 is not below max_steps=6" in warned
    assert re.search(r"a step has 20 micro-batches and the corpus only \d+", warned), warned
