"""The benchmarks, each once and small: what they print, and what they refuse."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hf_vanilla import demo_model

pytestmark = pytest.mark.release

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "scripts" / "benchmarks"
SMALL = ("--vocab_size", "300", "--tokens_per_batch", "64", "--sentences_per_batch", "2")


def benchmark(name, *arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_training_is_measured_for_every_engine_and_told_by_share(corpus_files):
    files = ("--source", corpus_files["train_source"], "--target", corpus_files["train_target"])
    done = benchmark("train.py", *files, *SMALL, "--rounds", "2", "--warmup", "1")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line]
    speeds = {row[0]: row[1:] for row in rows if len(row) == 7 and row[1][0].isdigit()}
    assert list(speeds) == [
        "MarianMT",
        "MarianMT, plain batches",
        "torch.nn.Transformer",
        "hf_vanilla",
        "MarianMT, bf16",
        "hf_vanilla, bf16",
    ]
    assert speeds["MarianMT"][1] == speeds["MarianMT"][3] == "1.00"
    assert speeds["MarianMT, plain batches"][4] == "1.00"
    assert all(float(row[0].replace(",", "")) > 0 for row in speeds.values())
    shares = [row for row in rows if row[-1].endswith("%")]
    for column in (1, 2):
        total = sum(int(row[column].split()[0]) for row in shares)
        assert 96 <= total <= 104  # each rounded to a percent


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("train.py", ("--size", "huge"), "size='huge': choose one of small, base"),
        ("train.py", ("--source", "a"), "give both --source and --target, or neither"),
        ("train.py", ("--warmup", "-1"), "warmup=-1: give 0 or more"),
        ("train.py", ("--rounds", "0"), "rounds=0: give 1 or more"),
        ("detr.py", ("--rounds", "0"), "rounds=0: give a positive number"),
        ("vit.py", ("--rounds", "0"), "rounds=0: give a positive number"),
        ("serve.py", ("--sentences", "0"), "sentences=0: give a positive number"),
        ("startup.py", ("--folder", "a", "--pairs", "0"), "pairs=0: give a positive number"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(name, arguments, told):
    done = benchmark(name, *arguments)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == f"error: {told}"


def test_positions_are_compared_in_both_directions(corpus_files, tmp_path, tiny_config):
    from hf_vanilla import VanillaForConditionalGeneration, train_tokenizer

    lines = Path(corpus_files["validation_source"]).read_text().splitlines()
    train_tokenizer(lines, vocab_size=270).save_pretrained(tmp_path / "t2t")
    tiny_config.update({"vocab_size": 300, "position_frequencies": "tensor2tensor"})
    tiny_config.update({"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0})
    VanillaForConditionalGeneration(tiny_config).save_pretrained(tmp_path / "t2t")
    files = ("--source", corpus_files["validation_source"])
    files += ("--reference", corpus_files["validation_target"], "--num_beams", "1")
    done = benchmark("position_frequencies.py", "--models", tmp_path / "t2t", *files)
    assert done.returncode == 0, done.stderr
    assert "trained with position_frequencies=tensor2tensor" in done.stdout
    assert "| words | sentences | tensor2tensor | paper | difference |" in done.stdout
    assert f"| all | {len(lines)} | " in done.stdout


def test_students_are_measured_beside_their_teacher(corpus_files, trained_run):
    files = ("--source", corpus_files["validation_source"])
    files += ("--reference", corpus_files["validation_target"])
    few = ("--batch_sizes", "1", "2", "--rounds", "2", "--beams", "2", "1")
    done = benchmark("students.py", "--models", trained_run, trained_run, *files, *few)
    assert done.returncode == 0, done.stderr
    heads, _, *rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert heads[5:] == ["times as fast, 1", "times as fast, 2"]
    assert [row[1] for row in rows] == ["2", "1", "2", "1"]
    assert rows[0][4:] == ["100.0%", "1.00", "1.00"]
    assert rows[0][2:5] == rows[2][2:5]  # the same model


@pytest.mark.parametrize(
    ("rounds", "message"),
    [("9999", "sentences: give fewer --rounds"), ("0", "give 1 or more for --rounds")],
)
def test_rounds_that_cannot_be_measured_are_refused(corpus_files, trained_run, rounds, message):
    files = ("--source", corpus_files["validation_source"])
    files += ("--reference", corpus_files["validation_target"])
    done = benchmark("students.py", "--models", trained_run, *files, "--rounds", rounds)
    assert done.returncode == 2
    assert message in done.stderr


def test_tags_by_alignment_are_compared_with_those_by_length(monkeypatch, tmp_path, capsys):
    (tmp_path / "source").write_text("<b>forty-two</b>\nseven\n")
    (tmp_path / "reference").write_text("<b>zweiundvierzig</b>\nsieben\n")
    files = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    monkeypatch.setattr("sys.argv", ["markup.py", "--model", demo_model(), *files])
    names = runpy.run_path(str(BENCHMARKS / "markup.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "1 lines with tags" in told
    assert "| word alignment | 1 | 1 | 1.000 | 0.00 |" in told
    assert "| share of the length | 1 | 1 | 1.000 | 0.00 |" in told
    placed = names["tags_by_share"]("<a>one</a> <b>two three</b> four", "eins zwei drei vier")
    assert placed == "<a>eins</a> <b>zwei drei</b> vier"
    assert names["tags_by_share"]("one <b>two</b>", "") == "<b></b>"
