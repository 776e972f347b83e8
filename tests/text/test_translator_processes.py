"""Two processes of Accelerate share a file; the output equals that of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run
import torch

from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.text.translator import Translator, translate

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "translate.py"
LINES = ["", *(source for source, _ in small_run.digit_pairs()[:31])]


class Rank(SimpleNamespace):
    """What a `PartialState` says in one of two processes; the processes are threads here."""

    num_processes, device = 2, torch.device("cpu")

    @property
    def is_main_process(self):
        return self.process_index == 0


@pytest.fixture
def run_ranks(monkeypatch):
    """Call a function in two threads, each with its rank; returns both results."""
    barrier, gathered, ranks = threading.Barrier(2, timeout=60), {}, threading.local()

    def gather(objects):
        gathered[ranks.own.process_index] = objects
        barrier.wait()
        together = gathered[0] + gathered[1]
        barrier.wait()
        return together

    monkeypatch.setattr("hf_vanilla.text.decoding.gather_object", gather)
    monkeypatch.setattr("hf_vanilla.text.file_translation.PartialState", lambda cpu: ranks.own)

    def run(function):
        def call(index):
            ranks.own = Rank(process_index=index, wait_for_everyone=barrier.wait)
            return function(ranks.own)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(call, range(2)))

    return run


class CountsRows(TorchEngine):
    """Counts the sentences it translates, and fails for one of them."""

    def __init__(self, trained, bad=None):
        super().__init__(*trained)
        self.bad, self.count = bad and self.tokenizer(bad).input_ids, 0

    def translate_rows(self, rows):
        if self.bad in rows:
            raise RuntimeError("bad sentence")
        self.count += len(rows)
        return super().translate_rows(rows)


def test_two_ranks_share_a_window_and_both_get_all_translations_and_failures(trained, run_ranks):
    def translate_on(rank):
        engine = CountsRows(trained, bad=LINES[5])
        translator = Translator(engine, tokens_per_batch=40, processes=rank)
        return list(translator.translate(LINES)), translator.failed, engine.count

    expected = translate(*trained, LINES)
    expected[5] = ""
    first, second = run_ranks(translate_on)
    assert (first[0], second[0]) == (expected, expected)
    assert first[1] == second[1] == [6]
    assert first[2] > 0
    assert second[2] > 0
    # without the blank line and the failed one; a rank that failed also translated a probe
    assert first[2] + second[2] == len(LINES) - 2 + 1


def test_rank_0_writes_the_file_and_no_rank_translates_everything(
    trained, run_ranks, tmp_path, monkeypatch
):
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    engines = []

    def open_translator(_, processes=None):
        engines.append(CountsRows(trained))
        return Translator(engines[-1], tokens_per_batch=40, processes=processes)

    # transformers cannot load a model in two threads at once
    monkeypatch.setattr(TranslateOptions, "open_translator", open_translator)
    options = TranslateOptions(
        model="loaded", input=str(tmp_path / "in"), output=str(tmp_path / "out")
    )
    assert run_ranks(lambda _: translate_file(options)) == [tmp_path / "out", None]
    assert sum(engine.count for engine in engines) == len(LINES) - 1  # one line is blank
    written = (tmp_path / "out").read_text(encoding="utf-8").split("\n")
    assert written == [*translate(*trained, LINES), ""]


@pytest.mark.slow
def test_two_processes_write_the_translations_of_one(processes, trained, trained_run, tmp_path):
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    options = ("--model", trained_run, "--input", "in", "--output", "out", "--tokens_per_batch", 40)
    done = processes(2, "python", SCRIPT, *options, cwd=tmp_path)
    assert [one.returncode for one in done] == [0, 0], done
    assert sorted(one.stdout for one in done) == ["", "out\n"]
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n") == [
        *translate(*trained, LINES),
        "",
    ]


@pytest.mark.slow
def test_stdin_is_refused_with_two_processes(processes, trained_run, tmp_path):
    for done in processes(2, "python", SCRIPT, "--model", trained_run, cwd=tmp_path):
        assert done.returncode == 1
        assert "error: 2 processes cannot share stdin: give a regular file" in done.stderr
