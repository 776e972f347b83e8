"""A sweep trains each run with each seed once; its comparison agrees with sacreBLEU and scipy."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small_run
import yaml
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy.stats import spearmanr

from hf_vanilla.options import UsageError
from hf_vanilla.plots.curves import RECIPE_FILE
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.training import comparison, sweep
from hf_vanilla.training.checkpointing import all_checkpoints
from hf_vanilla.training.comparison import CompareOptions, compare_runs
from hf_vanilla.training.comparison_statistics import (
    bleu_of,
    paired_bootstrap,
    rank_correlation,
    sentence_counts,
)
from hf_vanilla.training.preparation import locked
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.sweep import SweepOptions, TestSet, environments, read_sweep, run_sweep


def write_sweep(folder, files, **changes):
    """A sweep of two runs with two seeds on the corpus of digits."""
    options = {**small_run.TRAINING, **files, "max_steps": 2, "average_checkpoints": 1}
    values = {
        "output_dir": str(folder / "runs"),
        "seeds": [0, 7],
        "options": {**options, "model": small_run.MODEL},
        "runs": {"small": {"published": 25.0}, "smoothed": {"model.label_smoothing": 0.2}},
        "test": {"source": files["validation_source"], "reference": files["validation_target"]},
        **changes,
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def commands(monkeypatch):
    """Runs the commands of a sweep in this process, and lists them."""
    called = []

    def run(self, command, log):
        name, *arguments = command[3:]
        called.append((name, arguments))
        if name == "train":
            train(read_recipe(arguments))
        else:
            given = dict(zip(arguments[::2], arguments[1::2], strict=True))
            names = {key.removeprefix("--"): value for key, value in given.items()}
            translate_file(TranslateOptions(**{**names, "overwrite": True}))
        return 0

    monkeypatch.setattr(sweep.Children, "run", run)
    return called


def test_a_sweep_trains_each_seed_once_and_is_compared(corpus_files, tmp_path, commands):
    path = write_sweep(tmp_path, corpus_files)
    asked = path, SweepOptions(processes=1)
    assert "finished: 4 of 4 runs" in run_sweep(asked)
    trained = [Path(arguments[-1]).stem for name, arguments in commands if name == "train"]
    # seed by seed, so that an interrupted sweep has all runs
    assert [name.rpartition("-")[2] for name in trained] == ["0", "0", "7", "7"]
    run_sweep(asked)
    assert len(commands) == 8  # nothing was trained twice
    table = compare_runs((path, CompareOptions(samples=20, output=str(tmp_path / "t.md"))))
    head, _, *rows = table.splitlines()
    assert "test BLEU" in head
    assert rows[0].startswith("| small | 2 |")
    assert " ± " in rows[0]
    assert rows[1].startswith("| smoothed | 2 |")
    assert (tmp_path / "t.md").read_text() == table + "\n"
    for suffix, start in ((".csv", "run,seeds,"), (".tex", "% Mean"), (".json", '{\n "rows": [')):
        compare_runs((path, CompareOptions(samples=20, output=str(tmp_path / f"t{suffix}"))))
        text = (tmp_path / f"t{suffix}").read_text()
        assert text.startswith(start)
        assert "small" in text
    one, other = (small_run.weights(tmp_path / f"runs/small-seed-{seed}") for seed in (0, 7))
    assert any(not np.array_equal(one[name], other[name]) for name in one)
    path = write_sweep(tmp_path, corpus_files, runs={"small": {"max_length": 39}})
    with pytest.raises(ValueError, match=r"other options, which differ in max_length \(.*, now 39"):
        run_sweep((path, SweepOptions()))


def test_a_run_whose_files_cannot_be_written_leaves_the_others_alone(
    corpus_files, tmp_path, commands
):
    path = write_sweep(tmp_path, corpus_files, seeds=[0])
    (tmp_path / "runs/small-seed-0.yaml").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"1 of 2 runs failed; see .*small-seed-0\.log"):
        run_sweep((path, SweepOptions(processes=1)))
    assert [Path(arguments[-1]).stem for name, arguments in commands if name == "train"] == [
        "smoothed-seed-0"
    ]


def test_a_run_of_another_sweep_is_left_to_it(corpus_files, tmp_path, commands, caplog):
    path = write_sweep(tmp_path, corpus_files, seeds=[0], test=None)
    with (
        locked(tmp_path / "runs/small-seed-0.sweep"),
        pytest.raises(ValueError, match="1 of 2 runs failed"),
    ):
        run_sweep((path, SweepOptions(processes=1)))
    assert "small, seed 0: failed: " in caplog.text
    assert "is in use by process" in caplog.text
    assert [Path(arguments[-1]).stem for _, arguments in commands] == ["smoothed-seed-0"]


@pytest.mark.parametrize(
    ("line", "has_test", "message"),
    [
        ('{"step": 1, "loss": 2.0}', False, "give the run validation data"),
        ('{"step": 1, "validation_nll": 2.0}', True, "no line of the finished model: delete"),
    ],
)
def test_a_training_that_left_no_final_line_has_no_record(
    line, has_test, message, corpus_files, tmp_path, monkeypatch, caplog
):
    def run(self, command, log):
        folder = tmp_path / "runs/small-seed-0"
        folder.mkdir(exist_ok=True)
        (folder / "log.jsonl").write_text(line + "\n")
        return 0

    monkeypatch.setattr(sweep.Children, "run", run)
    changes = {} if has_test else {"test": None}
    runs = {"small": {"published": 25.0}}
    path = write_sweep(tmp_path, corpus_files, seeds=[0], runs=runs, **changes)
    with pytest.raises(ValueError, match="1 of 1 runs failed"):
        run_sweep((path, SweepOptions(processes=1)))
    assert message in caplog.text
    assert not (tmp_path / "runs/small-seed-0/sweep.json").exists()


def test_runs_without_validation_data_are_compared_by_the_test_set(
    corpus_files, tmp_path, commands
):
    run = {"validation_source": None, "validation_target": None}
    path = write_sweep(tmp_path, corpus_files, seeds=[0], runs={"small": run})
    assert "finished: 1 of 1 runs" in run_sweep((path, SweepOptions(processes=1)))
    head, _, row, *_ = compare_runs((path, CompareOptions(samples=20))).splitlines()
    assert head == "| run | seeds | test BLEU | difference (95 %) | p |"
    assert row.startswith("| small | 1 | ")


def test_signs_of_a_table_are_escaped_in_latex_and_markdown():
    table = comparison.Table(["a_b", "95 %"], [["x & y|z", "1 ± 2"]], ["tok:13a"])
    assert comparison.table_text(table, ".md").splitlines()[2] == r"| x & y\|z | 1 ± 2 |"
    assert comparison.table_text(table, ".tex").splitlines() == [
        "% tok:13a",
        r"\begin{tabular}{lr}",
        r"\hline",
        r"a\_b & 95 \% \\",
        r"\hline",
        r"x \& y\textbar{}z & 1 $\pm$ 2 \\",
        r"\hline",
        r"\end{tabular}",
    ]
    with pytest.raises(ValueError, match=r"output='t.docx': its end is one of .md, .tex"):
        CompareOptions(output="t.docx")


def test_a_changed_test_set_is_translated_without_training(corpus_files, tmp_path, commands):
    runs, source = {"small": {}}, tmp_path / "train.source"
    shutil.copy(corpus_files["train_source"], source)
    corpus_files = {**corpus_files, "train_source": str(source)}
    path = write_sweep(tmp_path, corpus_files, runs=runs, seeds=[0], test=None)
    run_sweep((path, SweepOptions()))
    assert [name for name, _ in commands] == ["train"]
    source.unlink()  # which is no longer needed
    test = {"source": tmp_path / "test.en", "reference": tmp_path / "test.de"}
    named = {name: str(file) for name, file in test.items()}
    write_sweep(tmp_path, corpus_files, runs=runs, seeds=[0], test=named)
    for text in ("eins zwei", "drei"):
        for file in test.values():
            file.write_text(f"{text}\n")
        with pytest.raises(ValueError, match=r"is no translation of .*test.en as it is now"):
            compare_runs((path, CompareOptions(samples=2)))
        run_sweep((path, SweepOptions()))
        compare_runs((path, CompareOptions(samples=2)))
    assert [name for name, _ in commands] == ["train", "translate", "translate"]


def test_a_recipe_file_that_was_edited_is_another_run(corpus_files, tmp_path, commands):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("weight_decay: 0.9")
    path = write_sweep(
        tmp_path, corpus_files, runs={"small": {"recipe": str(recipe)}}, seeds=[0], test=None
    )
    run_sweep((path, SweepOptions()))
    recipe.write_text("weight_decay: 0.8")
    with pytest.raises(ValueError, match=r"differ in weight_decay \(0.9, now 0.8\)"):
        compare_runs((path, CompareOptions()))


def test_options_of_a_file_may_be_null_lists_and_sections(corpus_files, tmp_path):
    path = write_sweep(
        tmp_path,
        corpus_files,
        runs={
            "a": {
                "logging_steps": None,
                "decoding": {"max_tokens_beyond_source": None, "max_length": 99},
                "learning_rate_of": {"encoder": 1e-5},
                "trackers": [],
                "model.activation_function": "gelu",
            }
        },
    )
    recipe = read_sweep(path).runs[0].recipe()
    assert recipe.decoding == {"max_tokens_beyond_source": None, "max_length": 99}
    assert recipe.model == {**small_run.MODEL, "activation_function": "gelu"}
    assert recipe.train.learning_rate_of == {"encoder": 1e-5}
    assert recipe.train.trackers == []
    assert recipe.train.logging_steps == 50
    runs = read_sweep(write_sweep(tmp_path, corpus_files, runs={"a": {"model": None}, "b": None}))
    assert [run.recipe().model for run in runs.runs[::2]] == [{}, small_run.MODEL]


def test_a_run_changes_entries_of_a_shared_section_however_both_are_written(corpus_files, tmp_path):
    shared, own = {"dropout": 0.3, "label_smoothing": 0.2}, {"dropout": 0.5}
    for options in ({"model": shared}, dotted(shared)):
        for run in ({"model": own}, dotted(own)):
            path = write_sweep(
                tmp_path,
                corpus_files,
                options={**corpus_files, "max_length": 64, "adam": {"beta1": 0.8}, **options},
                runs={"a": {"adam.beta2": 0.5, **run}},
            )
            recipe = read_sweep(path).runs[0].recipe()
            assert recipe.model == {"dropout": 0.5, "label_smoothing": 0.2}
            assert (recipe.train.adam.beta1, recipe.train.adam.beta2) == (0.8, 0.5)


def dotted(section):
    return {f"model.{name}": value for name, value in section.items()}


def test_a_missing_file_is_named_before_anything_runs(corpus_files, tmp_path, commands):
    none = {"train_source": None, "train_target": None}
    corpus = {"source": corpus_files["train_source"], "target": "no.de"}
    for run, name in (
        ({"validation_source": "no.en"}, "no.en"),
        ({**none, "mixture": [corpus]}, "no.de"),
        ({**none, "prepared": "no_folder"}, "no_folder"),
        ({"recipe": "demo_tracks", "validation": "no.csv"}, "no.csv"),
    ):
        path = write_sweep(tmp_path, corpus_files, runs={"a": {}, "b": run})
        if "recipe" in run:
            path.write_text(yaml.safe_dump({"output_dir": "r", "seeds": [0], "runs": {"b": run}}))
        with pytest.raises(FileNotFoundError, match=rf"runs\.b: {name}: no such file"):
            run_sweep((path, SweepOptions()))
    assert commands == []


def test_a_failed_run_is_named_and_the_others_are_finished(corpus_files, tmp_path, monkeypatch):
    path = write_sweep(tmp_path, corpus_files)
    monkeypatch.setattr(sweep.Children, "run", lambda *_: 1)
    with pytest.raises(ValueError, match=r"4 of 4 runs failed; see .*small-seed-0.log"):
        run_sweep((path, SweepOptions(processes=2)))
    with pytest.raises(ValueError, match="no run of the sweep is finished"):
        compare_runs((path, CompareOptions()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, "unknown key 'seed'; did you mean 'seeds'"),
        ({"seeds": []}, "seeds is missing"),
        ({"seeds": [1, "b"]}, r"seeds=\[1, 'b'\]: give a list of numbers"),
        ({"runs": {"a": {"max_step": 3}}}, "runs.a: recipe: unknown key 'max_step'; did you mean"),
        ({"runs": {"a": {"bpe_dropout": 2}}}, "runs.a: bpe_dropout=2"),
        ({"test": {"source": "x"}}, "test.reference is missing: file of their translations"),
        ({"test": {"source": None, "reference": "x"}}, "test.source is missing: file of source"),
        ({"test": {"sources": "x"}}, "unknown key 'sources'"),
        ({"test": {"source": 3, "reference": "x"}}, "test.source is 3: give a text"),
        ({"test": {"source": "x", "reference": "x", "lowercase": "maybe"}}, "give true or false"),
        ({"seeds": [0, 0]}, r"seeds=\[0, 0\]: give each seed once"),
        ({"runs": {"1": {}, 1: {}}}, "runs.1: give a run a name of its own"),
        ({"runs": {"a/b": {}}}, "runs.a/b: give a run a name of its own, without /"),
        ({"output_dir": ["r"]}, r"output_dir=\['r'\]: give a folder"),
        ({"options": [1]}, "options must hold keys and values"),
        ({"options": 0}, "options must hold keys and values, not 0"),
        ({"runs": {"a": 0}}, "runs.a must hold keys and values, not 0"),
        ({"options": {"seed": 7}}, "runs.small: seed=7: give seeds"),
        ({"runs": {"a": {"output_dir": "b"}}}, "runs.a: output_dir='b': give output_dir of the"),
        ({"runs": {"a": {"recipe": [1]}}}, r"runs.a: recipe is \[1\]: give a text"),
        ({"runs": {"a": {"recipe": "none"}}}, "runs.a: none: no such file, and no recipe of that"),
        ({"runs": {"a": {"model": {"dropout": 2}}}}, "(?s)runs.a: .*dropout=2: give a rate"),
        ({"runs": {"a": {"published": "abc"}}}, "runs.a: published='abc': give a number"),
        ({"runs": {"a": {"published": float("nan")}}}, "runs.a: published=nan: give a number"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_runs(changes, message, corpus_files, tmp_path):
    path = write_sweep(tmp_path, corpus_files, **changes)
    with pytest.raises(ValueError, match=message):
        read_sweep(path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("lines", "message"), [((2, 1), "line 2 has no translation"), ((0, 0), "are empty")]
)
def test_a_test_set_has_as_many_references_as_sources(lines, message, corpus_files, tmp_path):
    files = {}
    for name, number in zip(("source", "reference"), lines, strict=True):
        (tmp_path / name).write_text("eins\n" * number)
        files[name] = str(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        read_sweep(write_sweep(tmp_path, corpus_files, test=files))


@pytest.mark.parametrize(
    ("workers", "cpus", "given", "threads"),
    [
        (2, 2, None, "1"),
        (1, 4, None, "4"),
        (8, 4, None, "1"),
        (4, 4, "4", "1"),  # set by the package, for the quota of a container
        (4, 4, "2", "2"),
    ],
)
def test_runs_at_a_time_share_the_cpus(monkeypatch, workers, cpus, given, threads):
    monkeypatch.setattr(sweep, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(sweep.torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert environments(workers) == [{"OMP_NUM_THREADS": threads}] * workers
    assert len(environments(None)) == cpus


def test_runs_at_a_time_have_a_gpu_each_as_long_as_there_are_enough(monkeypatch):
    monkeypatch.setattr(sweep.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    assert [v["CUDA_VISIBLE_DEVICES"] for v in environments(3)] == ["5", "3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [v["CUDA_VISIBLE_DEVICES"] for v in environments(None)] == ["0", "1"]


@pytest.mark.release
def test_a_sigterm_ends_the_sweep_and_its_run_with_a_checkpoint(corpus_files, tmp_path):
    endless = {**small_run.TRAINING, **corpus_files, "max_steps": 10**6, "save_steps": 10**5}
    endless |= {"dataloader_workers": 1, "model": small_run.MODEL}
    path = write_sweep(tmp_path, corpus_files, options=endless, runs={"only": {}}, seeds=[0])
    folder = tmp_path / "runs" / "only-seed-0"
    command = [sys.executable, "-m", "hf_vanilla", "sweep", str(path), "--processes", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    while not (folder / "log.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGTERM)  # to sweep, run and worker, as Slurm does
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 143, told
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # none of them is left
    assert "Traceback" not in told + (tmp_path / "runs" / "only-seed-0.log").read_text()
    assert all_checkpoints(folder)
    with locked(folder):
        pass


@pytest.mark.parametrize(
    ("status", "told"),
    [
        *((status, "stopped") for status in (143, -signal.SIGTERM, 130)),
        (1, "failed"),
        (2, "failed"),
    ],
)
def test_a_run_ended_by_a_signal_is_stopped_and_not_failed(
    status, told, corpus_files, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(sweep.Children, "run", lambda *_: status)  # -15 where nothing handles it
    path = write_sweep(tmp_path, corpus_files, runs={"only": {}}, seeds=[0])
    with pytest.raises(ValueError, match="runs failed"):
        run_sweep((path, SweepOptions(processes=1)))
    assert f"only, seed 0: {told}" in caplog.text


@pytest.mark.parametrize("read", [sweep.read_sweep_command, comparison.read_comparison])
def test_both_commands_need_one_file(read):
    assert read(["a.yaml"])[0] == Path("a.yaml")
    with pytest.raises(UsageError, match="FILE"):
        read([])


def test_shipped_sweeps_can_be_read(monkeypatch, tmp_path):
    shipped = Path(sweep.__file__).parents[2] / "scripts" / "sweeps"
    for path in shipped.glob("*.yaml"):
        values = yaml.safe_load(path.read_text())
        monkeypatch.chdir(tmp_path)
        for name in {"source", "reference"} & values.get("test", {}).keys():
            file = Path(values["test"][name])
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(gzip.compress(b"a\n") if file.suffix == ".gz" else b"a\n")
        assert len(read_sweep(path).runs) == len(values["seeds"]) * len(values["runs"])


# --- the page ------------------------------------------------------------------------------------


REFERENCES = [f"a b c d {number} f g" for number in range(9)]


def finish(path, name, seed, *, wrong, values=None):
    """Write what a finished run leaves: its record, and translations with wrong sentences."""
    asked = read_sweep(path)
    (run,) = [r for r in asked.runs if (r.name, r.seed) == (name, seed)]
    run.folder.mkdir(parents=True)
    values = {"nll": 1.5} if values is None else values
    record = {"values": values, "seconds": 2, "test_source": asked.test.source_hash}
    (run.folder / RECIPE_FILE).write_text(run.recipe().to_yaml())
    (run.folder / sweep.RECORD_FILE).write_text(json.dumps(record))
    lines = ["x y" if number in wrong else line for number, line in enumerate(REFERENCES)]
    (run.folder / sweep.TEST_FILE).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def tested(tmp_path):
    """A test set whose translations are known."""
    reference = tmp_path / "reference.txt"
    reference.write_text("".join(f"{line}\n" for line in REFERENCES))
    return {"source": str(reference), "reference": str(reference)}


def test_a_measure_that_a_run_does_not_have_is_left_empty(corpus_files, tmp_path, tested):
    runs = {name: {"published": 20} for name in "abc"}
    path = write_sweep(tmp_path, corpus_files, runs=runs, test=tested)
    finish(path, "a", 0, wrong=(), values={})
    finish(path, "b", 0, wrong=(1,))
    finish(path, "c", 0, wrong=(1, 2))
    table = compare_runs((path, CompareOptions(samples=2)))
    assert table.splitlines()[2].startswith("| a | 1 |  | 100.00 |")
    assert table.splitlines()[3].startswith("| b | 1 | 1.5000 |")
    assert "Differences to a and p:" in table
    # of equal published scores there is no order
    assert "Rank correlation" not in table


def test_what_cannot_be_compared_is_named_and_nothing_is_written(corpus_files, tmp_path, tested):
    path = write_sweep(tmp_path, corpus_files, test=tested)
    finish(path, "smoothed", 0, wrong=())
    with pytest.raises(ValueError, match="baseline='small': no seed of it is finished"):
        compare_runs((path, CompareOptions()))
    record = tmp_path / "runs/smoothed-seed-0" / sweep.RECORD_FILE
    for text in ("{}", '{"values": ', '{"values": {"nll": NaN}}', "[]"):
        record.write_text(text)
        with pytest.raises(ValueError, match=r"sweep.json is damaged: delete it"):
            compare_runs((path, CompareOptions(baseline="smoothed")))
    record.unlink()
    path = write_sweep(tmp_path, corpus_files, test=None)
    (tmp_path / "runs/smoothed-seed-0/test.txt").unlink()
    record.write_text('{"values": {"nll": 1.5}}')
    out = tmp_path / "o.md"
    asked = CompareOptions(baseline="smoothed", output=str(out), page=str(tmp_path / "p.md"))
    with pytest.raises(ValueError, match="add test"):
        compare_runs((path, asked))
    assert not out.exists()


def test_a_page_states_what_is_missing_and_what_holds(corpus_files, tmp_path, tested):
    runs = {
        "base": {"published": 25.0},
        "worse": {"published": 24.0, "model.dropout": 0.2},
        "equal": {"published": 25.0, "model.dropout": 0.3},
        "other": {"published": 24.5, "model.dropout": 0.4},
        "absent": {"published": 23.0, "model.dropout": 0.0},
    }
    text = {"title": "Small", "about": "What it is."}
    path = write_sweep(tmp_path, corpus_files, runs=runs, test=tested, **text)
    for seed in (0, 7):
        finish(path, "base", seed, wrong=(3, 4, 5, 6))
    finish(path, "worse", 0, wrong=range(8))
    finish(path, "worse", 7, wrong=range(1, 8))
    finish(path, "equal", 0, wrong=(3, 4, 5, 6))
    finish(path, "other", 7, wrong=())
    out = tmp_path / "page.md"
    compare_runs((path, CompareOptions(baseline="base", samples=50, page=str(out))))
    page = out.read_text()
    assert page.startswith("# Small\n\nWhat it is.\n\nFinished: 6 of 10 runs (4 of 5 rows).")
    assert "Missing with seed 0: absent, other. Missing with seed 7: absent, equal." in page
    assert "A run is 2 steps of 240 tokens a side." in page
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in page.splitlines()}
    assert rows["worse"][1] == "2"
    assert rows["worse"][-1] == "holds |"
    assert rows["equal"][3:5] == ["+0.00", "+0.00 to +0.00"]
    assert rows["equal"][-2:] == ["+0.0", "holds |"]
    assert rows["other"][-2:] == ["-0.5", "does not hold |"]
    # the mean and the deviation of two differences, each by sacreBLEU
    score = BLEU(force=True).corpus_score
    scores = {
        run: [
            score(
                (path.parent / f"runs/{run}-seed-{s}/test.txt").read_text().split("\n")[:-1],
                [REFERENCES],
            ).score
            for s in (0, 7)
        ]
        for run in ("base", "worse")
    }
    differences = np.subtract(scores["worse"], scores["base"])
    expected = f"{differences.mean():+.2f} ± {differences.std(ddof=1):.2f}"
    assert rows["worse"][3] == expected
    assert "Rank correlation of our 4 rows with the published scores: " in page


def test_a_row_of_the_table_is_compared_with_the_same_seeds_of_the_baseline(
    corpus_files, tmp_path, tested
):
    path = write_sweep(
        tmp_path, corpus_files, runs={"base": {}, "new": {}, "other": {}}, test=tested
    )
    finish(path, "base", 0, wrong=(3,))
    finish(path, "base", 7, wrong=range(8))
    finish(path, "new", 0, wrong=(3,))
    table = compare_runs((path, CompareOptions(samples=5)))
    assert table.splitlines()[3].endswith(" | +0.00 (+0.00 to +0.00) | 1.000 |")
    assert "Missing with seed 0: other. Missing with seed 7: new, other." in table


@pytest.mark.parametrize(
    ("low", "high", "published", "verdict"),
    [
        (0.1, 0.9, 1.0, "holds"),
        (-0.9, -0.1, 1.0, "does not hold"),
        (-0.1, 0.9, 1.0, "undecided"),
        (-0.1, 0.9, 0.0, "holds"),
        (0.1, 0.9, 0.0, "does not hold"),
        (0.1, 0.9, None, ""),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side(low, high, published, verdict):
    found = comparison.Difference((low + high) / 2, low, high, 0.5)
    row = comparison.RowDifference((0.3,), found, published)
    assert row.verdict == verdict


# --- statistics ----------------------------------------------------------------------------------


def noisy(sentences, share, seed):
    draw = np.random.default_rng(seed)
    return [
        " ".join("x" if draw.random() < share else word for word in sentence.split())
        for sentence in sentences
    ]


def test_the_bootstrap_agrees_with_that_of_sacrebleu():
    draw = np.random.default_rng(1)
    references = [" ".join(map(str, draw.integers(9, size=12))) for _ in range(60)]
    base, other = noisy(references, 0.20, 2), noisy(references, 0.17, 3)
    _, results = PairedTest(
        [("base", base), ("other", other)],
        {"BLEU": BLEU()},
        [references],
        n_samples=1000,
    )()
    theirs = results["BLEU"]
    test = TestSet(source="", reference="")
    counts = [sentence_counts(texts, references, test) for texts in (base, other)]
    found = paired_bootstrap([counts[1]], [counts[0]], samples=1000)
    assert found.value == pytest.approx(theirs[1].score - theirs[0].score)
    assert found.low < found.value < found.high
    # both are shares of 1,000 draws
    assert found.p_value == pytest.approx(theirs[1].p_value, abs=0.05)
    assert 0.02 < found.p_value < 0.9


def test_two_seeds_are_compared_by_the_mean_of_their_scores():
    references = ["a b c d e f", "g h i j k l"]
    test = TestSet(source="", reference="")
    good, bad = (
        sentence_counts(texts, references, test)
        for texts in (references, noisy(references, 0.4, 0))
    )
    found = paired_bootstrap([good, bad], [bad], samples=10)
    assert found.value == pytest.approx((bleu_of(good) - bleu_of(bad)) / 2)


def test_the_rank_correlation_is_that_of_scipy():
    first, second = np.random.default_rng(0).integers(5, size=(2, 9)).tolist()
    correlation, chance = rank_correlation(first, second)
    theirs = spearmanr(first, second)
    assert correlation == pytest.approx(theirs.statistic)
    assert chance == pytest.approx(theirs.pvalue, abs=0.02)
    assert rank_correlation(first, first)[1] < 1e-3
    assert rank_correlation(first, [2] * 9) is None
