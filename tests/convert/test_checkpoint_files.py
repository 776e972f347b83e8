"""Checkpoint files: loaded without running code, and one line for those that cannot be loaded."""

import argparse
import pathlib

import pytest
import torch
from safetensors.torch import save_file

from hf_vanilla.convert.checkpoint_files import read_checkpoint

WEIGHTS = {"a": torch.arange(3.0), "b": torch.ones(2, dtype=torch.float16)}
FORMS = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "older than torch 1.6"])


def saved(value, path, *, is_zip=True):
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    return path


def test_safetensors_and_torch_files_are_loaded(tmp_path):
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    saved(WEIGHTS, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        found = read_checkpoint(tmp_path / name)
        assert found.keys() == WEIGHTS.keys()
        assert all(torch.equal(found[key], WEIGHTS[key]) for key in WEIGHTS)


@FORMS
def test_a_class_is_loaded_only_if_allowed(tmp_path, is_zip):
    path = saved({"args": argparse.Namespace(lr=1)}, tmp_path / "a.pt", is_zip=is_zip)
    with pytest.raises(ValueError, match=r"more than tensors: argparse\.Namespace; .*trust_pickle"):
        read_checkpoint(path, trust_pickle=False)
    with pytest.raises(ValueError, match="can run code from the file: save the tensors alone"):
        read_checkpoint(path)
    assert read_checkpoint(path, allowed=[argparse.Namespace])["args"].lr == 1


@FORMS
def test_a_class_that_is_not_allowed_is_named_and_loaded_only_with_trust_pickle(tmp_path, is_zip):
    content = {"args": argparse.Namespace(lr=1), "path": pathlib.PurePosixPath("a")}
    path = saved(content, tmp_path / "a.pt", is_zip=is_zip)
    with pytest.raises(ValueError, match=r"more than tensors: pathlib\.\w*\.?PurePosixPath; "):
        read_checkpoint(path, allowed=[argparse.Namespace])
    assert read_checkpoint(path, trust_pickle=True)["path"] == pathlib.PurePosixPath("a")


@FORMS
@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.97])
def test_an_incomplete_file_is_one_line(tmp_path, is_zip, share):
    path = saved(WEIGHTS, tmp_path / "a.pt", is_zip=is_zip)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(
        ValueError, match=r"a\.pt is incomplete or no checkpoint .*again$"
    ) as message:
        read_checkpoint(path)
    assert "\n" not in str(message.value)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_text_file_is_an_error(tmp_path, name):
    (tmp_path / name).write_text("hello world, this is text\n")
    for trust in (False, True):
        with pytest.raises(ValueError, match=r"is incomplete or no checkpoint \([^.]*\): get it"):
            read_checkpoint(tmp_path / name, trust_pickle=trust)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere.pt")


def test_a_key_is_that_of_another_toolkit_only_as_a_whole(tmp_path):
    path = saved({"model_state_dict": WEIGHTS}, tmp_path / "a.pt")
    assert read_checkpoint(path)["model_state_dict"].keys() == WEIGHTS.keys()
    with pytest.raises(ValueError, match="is a JoeyNMT checkpoint"):
        read_checkpoint(saved({"model_state": WEIGHTS}, tmp_path / "b.pt"))
