"""One command line for all figures: the name first, then the options of that figure."""

import dataclasses

import pytest

from hf_vanilla.families import load_part
from hf_vanilla.plots.figures import all_figures, plot, read_plot
from hf_vanilla.text.plot import PlotAttentionOptions

OPTIONS = {
    "attention": "model sentence translation output kind layer head theme overwrite",
    "curves": "run output theme overwrite",
    "objects": "model image kind threshold pixels output overwrite",
    "patches": "model image kind layer output overwrite",
    "tracks": "format columns frame_seconds "
    "step_seconds homography unit model input output scene frame frames picture "
    "picture_homography attention_of theme overwrite",
}


@pytest.mark.parametrize("name", all_figures())
def test_the_options_are_these(name):
    fields = [field.name for field in dataclasses.fields(load_part(all_figures()[name])[1])]
    assert fields == OPTIONS[name].split()


def test_a_name_and_options_are_read():
    choice = read_plot(["attention", "--model", "m", "--sentence", "a b", "--head", "all"])
    assert choice == ("attention", PlotAttentionOptions(model="m", sentence="a b", head="all"))


def test_a_negative_layer_is_a_value():
    _, options = read_plot(["attention", "--model", "m", "--sentence", "a", "--layer", "-2"])
    assert options.layer == "-2"


def test_several_values_make_a_list():
    name, options = read_plot(["curves", "--run", "a", "b"])
    assert (name, options.run) == ("curves", ["a", "b"])


def test_what_was_read_is_drawn(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    arguments = ["curves", "--run", str(tmp_path), "--output", str(tmp_path / "a.svg")]
    assert plot(read_plot(arguments)) == tmp_path / "a.svg"
    assert "optimizer step" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "missing: which figure; first comes one of curves, attention"),
        (["--model", "m"], "missing: which figure"),
        (["atention"], "unknown key 'atention'; did you mean 'attention'"),
        (["attention", "--model", "m"], "missing: --sentence"),
        (["curves", "--runs", "a"], "unknown: --runs; did you mean --run?"),
        (["objects", "--model", "m", "--image", "a", "--threshold", "high"], "threshold"),
    ],
    ids=str,
)
def test_a_mistyped_command_is_told(arguments, told):
    with pytest.raises(ValueError, match=told):
        read_plot(arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["attention", "--help"]], ids=str)
def test_help_tells_what_there_is(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        read_plot(arguments)
    assert caught.value.code == 0
    text = capsys.readouterr().out
    expected = ["--sentence", "--head"] if len(arguments) == 2 else list(all_figures())
    assert all(name in text for name in expected)
