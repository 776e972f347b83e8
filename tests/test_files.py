"""Output files and folders: complete or absent, whatever happens while they are written."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_vanilla.files import (
    check_output_file,
    read_json_lines,
    whole_file,
    whole_folder,
    write_files,
    write_text,
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def disk(monkeypatch):
    """What is flushed and renamed, in order: `("flush", path)`, `("rename", from, to)`."""
    events, replace = [], os.replace

    def flush(descriptor):
        events.append(("flush", os.readlink(f"/proc/self/fd/{descriptor}")))

    def rename(old, new):
        events.append(("rename", str(old), str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", rename)
    return events


# --- one file ----------------------------------------------------------------------------------


def test_a_file_is_replaced_only_when_the_block_ends(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with whole_file(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["out.txt"]


def test_the_old_file_stays_and_no_other_when_the_block_fails(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")

    def fail_halfway():
        with whole_file(path) as unfinished:
            unfinished.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_halfway()
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["out.txt"]


def test_two_writers_of_one_file_with_marks_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "out.txt"
    with whole_file(path, mark="~a") as first, whole_file(path, mark="~b") as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # its block ended last
    assert names_in(tmp_path) == ["out.txt"]


def test_a_symbolic_link_is_followed_and_kept(tmp_path):
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link", tmp_path / "there" / "file"
    file.write_text("old")
    link.symlink_to(file)
    write_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert names_in(tmp_path / "there") == ["file"]


def test_a_device_is_written_through_and_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))  # as /dev/null
        device.write_text("")
    except OSError:
        pytest.skip("devices need root, and a file system that allows them")
    write_text(device, "text")
    assert device.is_char_device()
    assert names_in(tmp_path) == ["null"]


def test_a_file_on_a_full_disk_is_named():
    full = "cannot write: No space left on device: '/dev/full'"
    with pytest.raises(OSError, match=full), whole_file(Path("/dev/full")) as unfinished:
        unfinished.write_text("one")


def test_a_named_pipe_is_written_through(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join(timeout=30)
    assert found == ["text"]
    assert pipe.is_fifo()


def test_a_folder_is_refused_as_output_file_before_the_work(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"is a folder: give the name of a file"):
        check_output_file(tmp_path, overwrite=True)
    with pytest.raises(IsADirectoryError, match="is a folder"), whole_file(tmp_path):
        pytest.fail("the block ran")


def test_an_output_file_is_checked_before_the_work(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine exists: choose .* or add --overwrite"):
        check_output_file(tmp_path / "mine")
    assert check_output_file(tmp_path / "mine", overwrite=True) == tmp_path / "mine"
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        check_output_file(tmp_path / "nowhere" / "out")
    assert str(check_output_file("/dev/null")) == "/dev/null"


# --- several files -----------------------------------------------------------------------------


def test_files_replace_their_namesakes_and_leave_the_others(tmp_path):
    (tmp_path / "a").write_text("old a")
    (tmp_path / "b").write_text("old b")
    write_files(tmp_path, lambda new: (new / "a").write_text("new a"))
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("new a", "old b")
    assert names_in(tmp_path) == ["a", "b"]


def test_leftovers_of_a_killed_process_do_not_reach_the_folder(tmp_path):
    (tmp_path / "files.partial").mkdir()
    (tmp_path / "files.partial" / "half").write_text("ha")
    write_files(tmp_path, lambda new: (new / "a").write_text("a"))
    assert names_in(tmp_path) == ["a"]


def test_no_file_changes_when_writing_fails(tmp_path):
    (tmp_path / "a").write_text("old")

    def write(new):
        (new / "a").write_text("ne")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_files(tmp_path, write)
    assert (tmp_path / "a").read_text() == "old"
    assert names_in(tmp_path) == ["a"]


def test_a_disk_that_is_full_while_a_tokenizer_is_written_is_an_os_error(tmp_path, tiny_tokenizer):
    def write(new):
        (new / "tokenizer.json").symlink_to("/dev/full")
        tiny_tokenizer.save_pretrained(new)

    with pytest.raises(OSError, match=r"cannot write: No space left on device: '.*run'"):
        write_files(tmp_path / "run", write)


# --- a folder ----------------------------------------------------------------------------------


def test_a_folder_appears_when_the_block_ends(tmp_path):
    with whole_folder(tmp_path / "deep" / "out") as folder:
        save_file({"a": torch.ones(2)}, folder / "model.safetensors")
        assert not (tmp_path / "deep" / "out").exists()
    assert names_in(tmp_path / "deep") == ["out"]
    assert load_file(tmp_path / "deep" / "out" / "model.safetensors")["a"].sum() == 2


def test_no_folder_is_left_when_the_block_fails(tmp_path):
    def fail_halfway():
        with whole_folder(tmp_path / "out") as folder:
            (folder / "config.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_halfway()
    assert names_in(tmp_path) == []


def test_an_empty_folder_is_accepted_and_kept_when_the_block_fails(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="no"), whole_folder(tmp_path / "out"):
        raise ValueError("no")
    assert names_in(tmp_path) == ["out"]
    with whole_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("a")
    assert (tmp_path / "out" / "a").read_text() == "a"


@pytest.mark.parametrize("is_made", [True, False], ids=["empty folder", "missing folder"])
def test_a_link_to_a_folder_is_followed_and_kept(tmp_path, is_made):
    (tmp_path / "disk").mkdir()
    if is_made:
        (tmp_path / "disk" / "folder").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "folder")
    with whole_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("a")
    assert (tmp_path / "out").is_symlink()
    assert names_in(tmp_path / "disk") == ["folder"]
    assert (tmp_path / "disk" / "folder" / "a").read_text() == "a"


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "folder"])
def test_an_output_that_exists_is_reported_before_the_work_and_kept(tmp_path, is_file):
    mine = tmp_path / "out" if is_file else tmp_path / "out" / "mine"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with (
        pytest.raises(FileExistsError, match="out exists and is not an empty folder: choose"),
        whole_folder(tmp_path / "out"),
    ):
        pytest.fail("the block ran")
    assert mine.read_text() == "mine"
    assert names_in(tmp_path) == ["out"]


def test_files_and_folder_have_the_permissions_of_the_umask(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_text("")
    with whole_folder(tmp_path / "out") as folder:
        save_file({"a": torch.ones(2)}, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(0o600)  # as some versions of safetensors leave it
    write_files(tmp_path / "out", lambda new: (new / "b").touch(mode=0o600))
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode
    for name in ("model.safetensors", "b"):
        expected = (tmp_path / "plain" / "file").stat().st_mode
        assert (tmp_path / "out" / name).stat().st_mode == expected


KILLED = """
import os, signal, sys
from hf_vanilla.files import whole_folder
with whole_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("ha")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_start_removes_what_a_killed_process_left(tmp_path):
    others = [
        f"out.partial-{socket.gethostname()}-{os.getpid()}-running",
        "out.partial-another.machine-4194305-x",
        "output.partial-mine",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert done.returncode == -9
    assert len(names_in(tmp_path)) == len(others) + 1
    with whole_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("a")
    assert names_in(tmp_path) == sorted(["out", *others])


# --- JSON lines --------------------------------------------------------------------------------


def test_cut_off_lines_and_other_values_are_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes('{"step": 1}\n{"st\n3\n\n{"text": "a\u2028b"}\n{"text": "\u00fc'.encode()[:-1])
    assert read_json_lines(path) == [{"step": 1}, {"text": "a\u2028b"}]
    assert read_json_lines(tmp_path / "nowhere") == []


# --- power cuts --------------------------------------------------------------------------------


def write_a_file(folder):
    write_text(folder / "a.txt", "text")


def write_some_files(folder):
    write_files(folder, lambda inner: [(inner / name).write_text("text") for name in "ab"])


def write_a_folder(folder):
    with whole_folder(folder / "out") as inner:
        (inner / "a.txt").write_text("text")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of descriptors: Linux only")
@pytest.mark.parametrize("write", [write_a_file, write_some_files, write_a_folder])
def test_files_are_on_the_disk_before_they_get_their_names_and_the_names_after(
    tmp_path, disk, write
):
    write(tmp_path)
    renamed = [event[1] for event in disk if event[0] == "rename"]
    assert renamed
    for name in renamed:
        before = disk[: next(i for i, e in enumerate(disk) if e[:2] == ("rename", name))]
        assert any(kind == "flush" and path.startswith(name) for kind, path, *_ in before)
    assert disk[-1] == ("flush", str(tmp_path))
