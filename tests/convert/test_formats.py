"""The command line of the converters: the formats, and the options of each."""

from dataclasses import fields

import opus
import pytest

from hf_vanilla.convert.formats import FORMATS, convert, read_conversion
from hf_vanilla.convert.marian import MarianOptions

# adding an option means editing this list in review
OPTIONS = {
    "agentformer": "input config output second second_config",
    "detr": "input output without_masks heads dilation",
    "fairseq": """
        input output dictionaries member source_lang target_lang pieces use_moses do_lower_case
        trust_pickle
    """,
    "fsmt": "input output",
    "marian": "input output frequencies check",
    "timm": "input output heads",
    "to-detr": "input output",
    "to-marian": "input output check",
    "to-vit": "input output",
    "torch": """
        input output heads pad_token_id decoder_start_token_id eos_token_id entry prefix transformer
        source_embedding target_embedding output_projection positions activation_function
        layer_norm_eps scale_embedding dropout trust_pickle
    """,
    "vit": "input output",
    "vit-google": "input output image_height",
}


def test_formats_and_options_are_frozen():
    found = {
        name: [option.name for option in fields(options)] for name, (options, _) in FORMATS.items()
    }
    assert found == {name: names.split() for name, names in OPTIONS.items()}


def test_help_of_a_format_lists_its_options(capsys):
    for name in FORMATS:
        with pytest.raises(SystemExit) as caught:
            read_conversion(["--format", name, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert all(f"--{option}" in text for option in OPTIONS[name].split())
        assert all(option.metadata["help"] for option in fields(FORMATS[name][0]))


def test_help_without_a_format_lists_the_formats(capsys):
    with pytest.raises(SystemExit) as caught:
        read_conversion(["--help"])
    assert caught.value.code == 0
    text = "".join(capsys.readouterr().out.split())  # argparse breaks lines at hyphens
    assert all(name in text for name in FORMATS)
    assert "--formatNAME--help" in text


def test_format_and_options_may_come_in_any_order():
    conversion = read_conversion(["--input", "a", "--format=marian", "--output", "b"])
    assert conversion == ("marian", MarianOptions(input="a", output="b"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing: --format"),
        (["--input", "a"], "missing: --format"),
        (["--format", "moses"], "format='moses': choose one of agentformer, detr, fairseq"),
        (["--format", "marian", "--input", "a"], "missing: --output"),
        (["--format", "marian", "--input", "a", "--output", "b", "--heads", "3"], "--heads"),
        (["--format", "torch", "--input", "a", "--output", "b"], "missing: --decoder_start_token"),
    ],
)
def test_a_mistyped_option_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        read_conversion(arguments)


def test_a_conversion_returns_its_output_folder(tmp_path):
    opus.write_folder(tmp_path / "theirs")
    paths = ["--input", str(tmp_path / "theirs"), "--output", str(tmp_path / "ours")]
    folder = convert(read_conversion(["--format", "marian", *paths]))
    assert folder == tmp_path / "ours"
    assert (folder / "model.safetensors").is_file()
