"""Runs over a whole corpus: in one process, killed and resumed, and by two Ray workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run

from hf_vanilla.text.corpus_translation import CorpusOptions, translate_corpus
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.shards import EARLIER_FAILED, FAILED
from hf_vanilla.text.translator import Translator, translate

PAIRS = small_run.digit_pairs()
LINES = [PAIRS[i % len(PAIRS)][0] for i in range(400)]
PROGRAM = Path(__file__).resolve().parents[1] / "corpus_run.py"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def options(corpus, tmp_path, trained_run):
    def options(**changes):
        default = {
            "model": str(trained_run),
            "input": [str(corpus)],
            "output": str(tmp_path / "out"),
            "lines_per_shard": 50,
            "num_beams": 1,
        }
        return CorpusOptions(**{**default, **changes})

    return options


@pytest.fixture
def expected(trained):
    return translate(*trained, LINES, num_beams=1)


def command_of(options, *more):
    """Of `corpus_run.py`, which can kill itself."""
    told = [f"--{name}={getattr(options, name)}" for name in ("model", "output", "num_beams")]
    told += [f"--input={options.input[0]}", f"--lines_per_shard={options.lines_per_shard}"]
    return [PROGRAM, *told, *more]


def start(options, *more):
    """A process of its own, since Ray starts further ones."""
    return subprocess.Popen(
        [sys.executable, *map(str, command_of(options, *more))],
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def texts(folder):
    return "".join(p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.txt"))).splitlines()


def test_a_corpus_is_translated_line_by_line(options, expected, tmp_path):
    report = translate_corpus(options())
    assert texts(tmp_path / "out") == expected
    assert str(report) == (f"{tmp_path / 'out'}: 400 lines in 8 shards, 0 done before, 0 redone")


def test_a_second_run_translates_nothing_and_loads_no_model(options, monkeypatch):
    translate_corpus(options())
    monkeypatch.setattr(CorpusOptions, "open_translator", None)  # a call would fail
    report = translate_corpus(options())
    assert (report.done_before, report.shards) == (8, 8)


def test_a_run_whose_model_does_not_load_binds_no_later_run(
    options, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr("hf_vanilla.text.corpus_translation._import_ray", FakeRay)
    for workers in (1, 2):
        with pytest.raises(OSError, match="nowhere"):
            translate_corpus(options(model=str(tmp_path / "nowhere"), workers=workers))
        assert list((tmp_path / "out").iterdir()) == []
    translate_corpus(options())
    assert texts(tmp_path / "out") == expected

    next((tmp_path / "out").glob("*.txt")).unlink()
    kept = sorted((tmp_path / "out").iterdir())
    monkeypatch.setattr(CorpusOptions, "open_texts", None)  # a call fails
    with pytest.raises(TypeError):
        translate_corpus(options())
    assert sorted((tmp_path / "out").iterdir()) == kept  # with the manifest of the earlier run


def test_a_killed_run_continues_and_reports_the_shard_it_repeats(
    program, options, expected, tmp_path, caplog
):
    told = ("--dies_at=4", "--tokens_per_batch=4096")  # a shard is one batch
    run = program("python", *command_of(options(), *told))
    assert run.returncode == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.txt")}
    assert len(done) == 3
    with caplog.at_level("INFO", logger="hf_vanilla"):
        report = translate_corpus(options(tokens_per_batch=100))  # batches change no output
    assert "3 of 8 shards are done; translating 5, of which an earlier run began 1" in caplog.text
    assert (report.done_before, report.redone) == (3, 1)
    assert texts(tmp_path / "out") == expected
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())
    assert not list((tmp_path / "out").glob("*.partial"))


def test_lists_of_a_corpus_continue_after_a_kill_with_the_same_rows(
    program, options, corpus, trained, tmp_path
):
    corpus.write_text("".join(f"{line}\n" for line in LINES[:30]), encoding="utf-8")
    asked = {"n_best": 2, "num_beams": 3, "lines_per_shard": 10}
    told = ("--dies_at=2", "--n_best=2", "--tokens_per_batch=4096")
    run = program("python", *command_of(options(**asked), *told))
    assert run.returncode == -signal.SIGKILL
    report = translate_corpus(options(**asked))
    assert (report.done_before, report.redone) == (1, 1)
    shards = sorted((tmp_path / "out").glob("*.tsv"))
    rows = "".join(path.read_text("utf-8") for path in shards).splitlines()
    lists = Translator(TorchEngine(*trained, num_beams=3)).n_best(LINES[:30], 2)
    expected = [(line, one.text) for line, of in zip(LINES, lists, strict=False) for one in of]
    assert [tuple(row.split("\t")[:2]) for row in rows] == expected
    assert len(rows) == 60
    with pytest.raises(ValueError, match="out with other n_best=2"):
        translate_corpus(options(**{**asked, "n_best": 3}))


def test_lists_that_the_search_cannot_give_are_refused_before_anything_is_written(
    options, tmp_path
):
    with pytest.raises(ValueError, match="n_best=3, but num_beams=2: add --num_beams 3"):
        translate_corpus(options(n_best=3, num_beams=2))
    assert not (tmp_path / "out").exists()
    for changes, message in (
        ({"n_best": 0}, "n_best=0: give a positive number"),
        ({"n_best": 2, "engine": "ctranslate2"}, "n_best=2 needs --engine torch"),
        ({"n_best": 2, "keep_markup": True}, "n_best is of single sentences"),
    ):
        with pytest.raises(ValueError, match=message):
            options(**changes)


def test_sampled_lists_have_any_number_of_rows_per_line(options, corpus, tmp_path):
    corpus.write_text("".join(f"{line}\n" for line in LINES[:5]), encoding="utf-8")
    translate_corpus(options(n_best=4, generation={"do_sample": True, "top_k": 5}, seed=3))
    (shard,) = (tmp_path / "out").glob("*.tsv")
    sources = [row.split("\t")[0] for row in shard.read_text("utf-8").splitlines()]
    assert sources == [line for line in LINES[:5] for _ in range(4)]


def test_failed_lines_are_an_error_unless_accepted_in_later_runs_too(options, corpus, tmp_path):
    with corpus.open("ab") as file:
        file.write(b"\xff\n")
    for _ in ("first run", "nothing left to do"):
        with pytest.raises(ValueError, match=r"401 lines.* failed lines: 1.*--accept_failures"):
            translate_corpus(options())
    report = translate_corpus(options(accept_failures=True))
    assert str(report).endswith("failed lines: 1, see *.failed")
    (record,) = (tmp_path / "out").glob("*.failed")
    assert record.read_text() == "401\n"
    # what the shell joins as *.txt has one line per line of the corpus
    joined = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("*.txt")))
    assert joined.count(b"\n") == 401
    record.rename(record.with_name(f"{record.name}.txt"))  # its name in earlier versions
    with pytest.raises(ValueError, match=r"401 lines.* failed lines: 1.*--accept_failures"):
        translate_corpus(options())


def test_a_changed_model_is_refused_in_an_output_that_was_begun(options, trained_run, tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for path in trained_run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    translate_corpus(options(model=str(copy)))
    (copy / "generation_config.json").write_text('{"num_beams": 2}')
    with pytest.raises(ValueError, match="out with other model_files"):
        translate_corpus(options(model=str(copy)))


def test_a_changed_member_of_an_ensemble_is_refused_in_an_output_that_was_begun(
    options, corpus, trained_run, tmp_path
):
    corpus.write_text("1 2\n", encoding="utf-8")
    member = tmp_path / "member"
    member.mkdir()
    for path in trained_run.iterdir():
        if path.is_file():
            (member / path.name).write_bytes(path.read_bytes())
    translate_corpus(options(ensemble=[str(member)]))
    assert translate_corpus(options(ensemble=[str(member)])).done_before == 1
    weights = member / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    with pytest.raises(ValueError, match="out with other ensemble_files: use the same again"):
        translate_corpus(options(ensemble=[str(member)]))


def test_a_shard_that_is_redone_without_failures_leaves_none_recorded(options, tmp_path):
    translate_corpus(options())
    shard = min((tmp_path / "out").glob("*.txt"))
    shard.unlink()
    for name in (FAILED, EARLIER_FAILED):
        (tmp_path / "out" / (shard.name + name)).write_text("3\n")
    assert translate_corpus(options()).failed == 0


def test_several_workers_without_ray_are_refused_with_a_remedy(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[ray\]' .*, or --workers 1"):
        translate_corpus(options(workers=2))


@pytest.mark.parametrize("name", ["lines_per_shard", "workers", "threads_per_worker"])
def test_a_count_below_one_is_refused(name, options):
    with pytest.raises(ValueError, match=f"{name}=0: give a positive number"):
        options(**{name: 0})


def test_more_than_one_gpu_for_a_worker_is_refused(options):
    with pytest.raises(ValueError, match="gpus_per_worker=2: give a number from 0 to 1"):
        options(gpus_per_worker=2)


class FakeRay:
    """The part of Ray that a run uses, in this process; records the arguments of its calls."""

    def __init__(self):
        self.data, self.exceptions, self.calls = self, SimpleNamespace(RayError=KeyError), {}

    def is_initialized(self):
        return "init" in self.calls

    def init(self, **arguments):
        self.calls["init"] = arguments

    def shutdown(self):
        self.calls["is_shut"] = True

    def ActorPoolStrategy(self, size):  # noqa: N802 - Ray's name
        return size

    def from_items(self, rows, override_num_blocks):
        self.rows, self.calls["blocks"] = rows, override_num_blocks
        return self

    def map(self, worker, *, fn_constructor_args, **arguments):
        self.calls["map"] = arguments
        self.rows = list(map(worker(*fn_constructor_args), self.rows))
        return self

    def iter_rows(self):
        return iter(self.rows)


def test_ray_gets_the_address_and_the_resources_of_a_worker(
    options, expected, tmp_path, monkeypatch
):
    ray = FakeRay()
    monkeypatch.setattr("hf_vanilla.text.corpus_translation._import_ray", lambda: ray)
    translate_corpus(options(address="ray://there:1", workers=3, gpus_per_worker=1))
    assert ray.calls["init"] == {"address": "ray://there:1", "include_dashboard": None}
    assert ray.calls["map"] == {"compute": 3, "num_cpus": 1, "num_gpus": 1}
    assert ray.calls["blocks"] == 8
    assert ray.calls["is_shut"]
    assert texts(tmp_path / "out") == expected


def test_ray_on_one_machine_gets_the_threads_and_at_most_one_worker_per_shard(options, monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr("hf_vanilla.text.corpus_translation._import_ray", lambda: ray)
    threads = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    translate_corpus(options(workers=9, threads_per_worker=2))
    assert ray.calls["init"] == {"num_cpus": 19, "include_dashboard": False}
    assert ray.calls["map"] == {"compute": 8, "num_cpus": 2, "num_gpus": None}
    assert threads == [2]


# --- Ray ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_ray_worker_loses_and_repeats_no_line(options, expected, tmp_path):
    pytest.importorskip("ray")
    run = start(options(), "--workers=2", "--tokens_per_batch=20")
    killed = None
    while killed is None and run.poll() is None:
        for path in (tmp_path / "out").glob("*.txt~*.partial"):
            killed = int(path.name.removesuffix(".partial").rsplit("-", 1)[1])
            os.kill(killed, signal.SIGKILL)
            break
        time.sleep(0.01)
    out, err = run.communicate(timeout=300)
    assert killed is not None
    assert run.returncode == 0, err
    assert "400 lines in 8 shards, 0 done before" in out
    assert texts(tmp_path / "out") == expected
    assert not list((tmp_path / "out").glob("*.partial"))


@pytest.mark.slow
def test_an_error_of_a_ray_worker_is_reported_in_one_line(options, corpus):
    pytest.importorskip("ray")
    run = start(options(model=str(corpus.parent)), "--workers=2")
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "is not a model folder" in err.splitlines()[-1]
