"""The benchmark of `generate()`, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "generate.py"


def test_all_engines_translate_alike_and_are_listed_with_speed_and_memory(tmp_path, tiny_tokenizer):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_ffn_dim": 24}
    marian = {"position_layout": "concatenated", "layer_norm_eps": 1e-5}
    config = VanillaConfig(vocab_size=len(tiny_tokenizer), **sizes, **marian)
    VanillaForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("ein Haus\nam See\na house\nby the lake\n", encoding="utf-8")
    command = [sys.executable, str(SCRIPT), "--model", "model", "--source", "text"]
    options = ["--batch_size", "2", "--rounds", "1", "--num_beams", "2", "--threads", "1"]
    done = subprocess.run(
        [*command, *options, "--size", "own"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    names = [row[0] for row in rows]
    assert names[:3] == ["MarianMTModel", "hf_vanilla, plain", "hf_vanilla"]
    assert rows[0][1] == "1.00"
    assert all(float(row[2]) > 1 for row in rows)
    assert all(row[3] == "2 of 2" for row in rows[:3])


def test_a_size_that_is_none_is_refused(tmp_path):
    command = [sys.executable, str(SCRIPT), "--model", "m", "--source", "t", "--size", "huge"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "size='huge': choose one of own, base" in done.stderr
