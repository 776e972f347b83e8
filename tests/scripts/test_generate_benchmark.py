"""The benchmark of `generate()`, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

pytestmark = pytest.mark.release

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "generate.py"


def make_model(folder, tokenizer):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_ffn_dim": 24}
    marian = {"position_layout": "concatenated", "layer_norm_eps": 1e-5}
    config = VanillaConfig(vocab_size=len(tokenizer), **sizes, **marian)
    VanillaForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run_script(folder, *options, check=True):
    command = [sys.executable, str(SCRIPT), "--model", "model", "--source", "text", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=check
    )


def test_all_engines_translate_alike_and_are_listed_with_speed_and_memory(tmp_path, tiny_tokenizer):
    make_model(tmp_path / "model", tiny_tokenizer)
    (tmp_path / "text").write_text("ein Haus\n\nam See\na house\n", encoding="utf-8")
    (tmp_path / "reference").write_text("a house\n\nby the lake\nein Haus\n", encoding="utf-8")
    sizes = ["--batch_sizes", "1,2", "--rounds", "0", "--num_beams", "2", "--threads", "1"]
    done = run_script(tmp_path, *sizes, "--reference", "reference")
    titles, _, *rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert titles == ["engine", "batch 1", "batch 2", "peak MiB", "equal", "BLEU"]
    assert [row[0] for row in rows[:4]] == [
        "MarianMTModel",
        "hf_vanilla, transformers' search",
        "hf_vanilla",
        "hf_vanilla, Translator float32",
    ]
    assert rows[0][1:3] == ["1.00 (1.00)", "1.00 (1.00)"]
    assert all(float(row[3]) > 1 for row in rows)
    # three lines of text in batches of 1, and again in batches of 2
    assert all(row[4] == "6 of 6" for row in rows[:4])
    assert len({row[5] for row in rows[:4]}) == 1


def test_what_cannot_be_measured_is_refused(tmp_path):
    for option, value in (("batch_sizes", "16,none"), ("rounds", "-1"), ("threads", "0")):
        done = run_script(tmp_path, f"--{option}={value}", check=False)
        assert done.returncode == 1
        assert f"{option}=" in done.stderr
        assert "give" in done.stderr
