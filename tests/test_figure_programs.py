"""The programs of docs/figures, and BLEU by length: what they draw."""

import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sacrebleu.metrics import BLEU

from hf_vanilla import VanillaConfig
from hf_vanilla.plots.figures import figure_style
from hf_vanilla.text.attentions import Attentions

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "docs" / "figures"
LENGTH_BLEU = ROOT / "scripts" / "benchmarks" / "length_bleu.py"


def run(monkeypatch, program, *arguments):
    """Run a program in this process; returns its names."""
    monkeypatch.setattr(sys, "argv", [str(program), *map(str, arguments)])
    return runpy.run_path(str(program), run_name="__main__")


def test_each_program_draws_its_file_in_both_themes(monkeypatch, tmp_path, capsys):
    # page.py records a browser
    for program in sorted({*PROGRAMS.glob("*.py")} - {PROGRAMS / "page.py"}):
        suffix = ".gif" if program.stem == "animation" else ".png"
        few = ("--sentence", "forty-two") if program.stem == "animation" else ()
        for theme, lightness in (("light", 255), ("dark", 20)):
            output = tmp_path / f"{program.stem}_{theme}{suffix}"
            run(monkeypatch, program, "--output", output, "--theme", theme, *few)
            assert capsys.readouterr().out == f"{output}\n"
            with Image.open(output) as image:
                assert image.convert("L").getpixel((0, 0)) == pytest.approx(lightness, abs=8)


@pytest.mark.parametrize(
    ("program", "mistake", "message"),
    [
        ("animation.py", ["--sentence", " "], "the sentence is blank"),
        ("architecture.py", ["--output", "figure.jpg"], "end it with .png or .svg"),
        ("positions.py", ["--d_model", "127"], "d_model=127 is odd"),
        ("positions.py", ["--length", "7"], "length=7: give 8 or more"),
        ("schedule.py", ["--recipe", "nothing"], "nothing: no such file, and no recipe"),
        ("serve.py", ["--output", "figure.jpg"], "end it with .png or .svg"),
    ],
)
def test_a_program_names_a_mistake_in_one_line(monkeypatch, tmp_path, program, mistake, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        run(monkeypatch, PROGRAMS / program, *mistake)


def test_the_costs_of_the_service_are_those_of_the_table(tmp_path, figures):
    page = """| sentences/s; CPU ms of a sentence | small | `large` |
|---|---|---|
| 1 client | 20; 30 | 1.5; 900 |
| 64 clients | 200; 4 | 3; 250 |
| answers | 0 of 2 | 0 of 2 |
"""
    runpy.run_path(str(PROGRAMS / "serve.py"))["save_costs"](page, tmp_path / "serve.png")
    (axes,) = figures[-1].axes
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert points == {"small": [[20, 30], [200, 4]], "large": [[1.5, 900], [3, 250]]}
    assert [text.get_text() for text in axes.texts] == ["1", "64"] * 2


def test_the_architecture_has_the_numbers_of_the_config(
    monkeypatch, tmp_path, figures, tiny_config
):
    tiny_config.save_pretrained(tmp_path / "tiny")
    VanillaConfig(final_layer_norm=True).save_pretrained(tmp_path / "final_norm")
    shown, titles = {}, {}
    for name, given in {"base": (), "tiny": ("tiny",), "final_norm": ("final_norm",)}.items():
        model = [word for folder in given for word in ("--model", tmp_path / folder)]
        output = tmp_path / f"{name}.png"
        run(monkeypatch, PROGRAMS / "architecture.py", *model, "--output", output)
        shown[name] = [text.get_text() for text in figures[-1].axes[0].texts]
        titles[name] = figures[-1].get_suptitle()
    base = shown["base"]
    assert base.count("6 x") == 2
    assert base.count("Feed forward\n512 → 2,048 → 512") == 2
    assert base.count("Multi-head attention\n8 heads of 64") == 2  # encoder and cross-attention
    assert base.count("Masked multi-head attention\n8 heads of 64") == 1
    assert "Linear\n512 → 37,000" in base
    assert titles["base"] == "The Transformer: d_model 512, 63,045,632 parameters"
    assert [text for text in shown["tiny"] if text.endswith(" x")] == ["2 x", "5 x"]
    assert "Feed forward\n12 → 31 → 12" in shown["tiny"]
    assert shown["final_norm"].count("Norm\n512") == 2


def test_the_positions_are_the_papers_and_their_products_depend_on_distance(
    monkeypatch, tmp_path, figures
):
    output = tmp_path / "a.png"
    given = ("--d_model", 6, "--length", 8, "--output", output)
    run(monkeypatch, PROGRAMS / "positions.py", *given)
    table, products = (axes.images[0].get_array() for axes in figures[-1].axes[:2])
    for position in range(8):
        angles = [position / 10_000 ** (2 * pair / 6) for pair in range(3)]
        expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        assert table[position].tolist() == pytest.approx(expected, abs=1e-6)
    expected = sum(math.cos(3 / 10_000 ** (2 * pair / 6)) for pair in range(3)) / 3
    assert [products[i, i + 3] for i in range(5)] == pytest.approx([expected] * 5, abs=1e-6)


def test_the_learning_rates_are_the_papers_or_a_recipes(monkeypatch, tmp_path, figures):
    output = tmp_path / "a.png"
    run(monkeypatch, PROGRAMS / "schedule.py", "--output", output)
    names = [text.get_text() for text in figures[-1].axes[0].get_legend().get_texts()]
    assert names[0] == "d_model 512, warmup 4,000: peak 0.0007"
    base = dict(
        zip(*(data.tolist() for data in figures[-1].axes[0].lines[0].get_data()), strict=True)
    )
    # d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5), by a calculator
    expected = {1: 1.746928e-07, 4000: 6.987712e-04}
    assert {step: base[step] for step in expected} == pytest.approx(expected, rel=1e-6)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("max_steps: 40\nwarmup_steps: 10\nlearning_rate: 0.002\nmodel: {d_model: 16}")
    run(monkeypatch, PROGRAMS / "schedule.py", "--recipe", recipe, "--output", output)
    (line,) = figures[-1].axes[0].lines
    assert line.get_label() == "mine (d_model 16, warmup 10): peak 0.002"
    assert (max(line.get_xdata()), max(line.get_ydata())) == (40, pytest.approx(0.002))
    labels = [text.get_text() for text in figures[-1].axes[0].get_yticklabels()]
    assert "0.00175" in labels  # in full: equal distances have equal differences


def test_the_animation_leads_from_the_new_token_to_what_it_attends_to(monkeypatch, tmp_path):
    output = tmp_path / "a.gif"
    given = ("--sentence", "forty-two", "--output", output)
    program = run(monkeypatch, PROGRAMS / "animation.py", *given)
    with Image.open(output) as image:
        assert image.n_frames == 1 + 3 + 1  # zwei, undvierzig, </s>
        assert image.info["duration"] == 900
        image.seek(4)
        assert image.info["duration"] == 2700
    cross = torch.zeros(2, 1, 2, 3)
    cross[1, 0, 0, 2] = cross[1, 0, 1, 0] = 1  # the first layer is not drawn
    cross[0, 0, :, 1] = 1
    none = torch.zeros(1, 1, 1, 1)
    source, target, read = ["aaa", "bbb", "ccc"], ["xxx", "yyy"], ["<start>", "xxx"]
    seen = Attentions(source, target, read, none, none, cross, torch.zeros(2, 3), [0, 0])
    with figure_style("light") as theme:
        before, first, second, _ = (
            np.flatnonzero(np.ptp(np.asarray(frame, int)[frame.size[1] - 210], axis=-1) > 20)
            for frame in program["frames_of"](seen, theme)
        )
    middle = 420  # of the columns; colours of one row of dots between the sentences
    assert before.size == 0
    assert first.min() > middle  # "ccc" is on the right
    assert second.min() < middle < second.max()  # "aaa" on the left, and the first line stays
    with pytest.raises(SystemExit, match="give a shorter sentence"):
        run(monkeypatch, PROGRAMS / "animation.py", "--sentence", "one hundred " * 12)


def test_bleu_by_length_scores_each_bin_by_its_own_sentences(monkeypatch, tmp_path, figures):
    lengths = [1, 2, 3, 4, 5, 9]
    references = [f"a b c d e {number}" for number in range(6)]
    half = [*references[:3], *["a b c x y z"] * 3]
    texts = {"source": [" ".join("x" * n) for n in lengths], "reference": references, "half": half}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--source", tmp_path / "source", "--reference", tmp_path / "reference")
    given = (*files, "--translations", tmp_path / "half", "--output", tmp_path / "a.png")
    run(monkeypatch, LENGTH_BLEU, *given, "--edges", "2", "4", "7", "8")
    upper, lower = figures[-1].axes
    assert [bar.get_height() for bar in lower.patches] == [2, 2, 1, 0, 1]
    assert [t.get_text() for t in lower.get_xticklabels()] == ["≤2", "3-4", "5-7", "8", ">8"]
    expected = [
        BLEU().corpus_score([half[i] for i in rows], [[references[i] for i in rows]]).score
        if rows
        else math.nan
        for rows in ([0, 1], [2, 3], [4], [], [5])
    ]
    assert upper.lines[0].get_ydata().tolist() == pytest.approx(expected, nan_ok=True)
    assert any("tok:13a" in text.get_text() for text in figures[-1].texts)
    program = runpy.run_path(str(LENGTH_BLEU))
    cases = {
        (3,) * 50: [1, 2],
        (7,) * 50 + (400,): [1, 2, 3, 4, 5, 6],
        (900,) * 9: [200, 400, 600, 800],
    }
    for many, edges in cases.items():
        assert program["round_edges"](many) == edges
    (tmp_path / "half").write_text("a\nb\n")
    with pytest.raises(SystemExit, match=r"^error: .*half has 2 lines, and there are 6 sources$"):
        run(monkeypatch, LENGTH_BLEU, *given)
