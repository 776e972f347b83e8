"""What a run tells: operations as torch counts them, shares by hand, and nothing twice."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run
import torch
from accelerate import Accelerator

from hf_vanilla.files import read_json_lines
from hf_vanilla.text.options import MEASURES
from hf_vanilla.text.task import perplexity
from hf_vanilla.training import metrics_log
from hf_vanilla.training.metrics_log import (
    MetricsLog,
    Progress,
    bar_text,
    drop_later_entries,
    run_summary,
)
from hf_vanilla.training.run import train
from hf_vanilla.training.task import Work
from hf_vanilla.training.train_step import StepResult

# --- the log -----------------------------------------------------------------------------------


def written(folder, *lines):
    path = folder / "log.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = written(tmp_path, '{"step": 2, "loss": 5.0}', '{"step": 4, "lo')
    assert read_json_lines(path) == [{"step": 2, "loss": 5.0}]


def test_what_was_told_of_later_steps_and_of_the_mean_is_dropped(tmp_path):
    entries = [
        {"step": 2},
        {"step": 4, "averaged_checkpoints": 0},
        {"step": 4, "averaged_checkpoints": 3},
        {"step": 6},
    ]
    path = written(tmp_path, *map(json.dumps, entries))
    drop_later_entries(path, 4)
    assert read_json_lines(path) == entries[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_run_without_a_log_has_nothing_to_drop(tmp_path):
    drop_later_entries(tmp_path / "log.jsonl", 4)
    assert read_json_lines(tmp_path / "log.jsonl") == []


def test_the_log_has_throughput_padding_and_the_plain_perplexity(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    entries = [e for e in read_json_lines(folder / "log.jsonl") if "loss" in e]
    assert entries
    for entry in entries:
        assert entry["tokens_per_second"] > 0
        assert 0 <= entry["padding_share"] < 1
        assert entry["train_perplexity"] == pytest.approx(perplexity(entry["train_nll"]))
        assert entry["train_nll"] != entry["loss"]  # the loss is smoothed
        assert "mfu" not in entry  # nobody knows a CPU's peak


def test_saving_between_two_lines_leaves_the_speed_alone(corpus_files, tmp_path, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: now[0])
    monkeypatch.setattr(metrics_log, "time", clock)
    works = {"first": Work(600, 900, 1000, 1000), "second": Work(400, 500, 500, 1000)}
    task = SimpleNamespace(
        items="windows",
        counted=("steps",),
        derived=lambda _: {},
    )
    recipe = small_run.recipe(tmp_path, corpus_files)
    log = MetricsLog(Accelerator(cpu=True), recipe, task, Progress())
    for step, name in enumerate(works, start=1):
        if step == 2:
            now[0] = 2.0
            with log.paused():
                now[0] = 52.0
        loss = {"loss": torch.tensor(1.0)}
        log.add(StepResult(step, 0.1, torch.tensor([7]), loss, [step]), works[name])
    now[0] = 55.0
    progress = Progress(step=2)
    entry = log.train_line(progress, log.read(None, progress))
    assert entry["windows_per_second"] == (600 + 400) / (2 + 3)
    assert entry["steps"] == 14
    assert entry["padding_share"] == round(1 - 1400 / 1500, 4)


def test_without_smoothing_and_dropout_the_loss_is_the_plain_one(corpus_files, tmp_path):
    plain = {"label_smoothing": 0.0, "dropout": 0.0}
    passes = {"tokens_per_batch": 80}
    folder = train(small_run.recipe(tmp_path / "run", corpus_files, model=plain, **passes))
    entry = next(e for e in read_json_lines(folder / "log.jsonl") if "loss" in e)
    assert entry["train_nll"] == pytest.approx(entry["loss"], rel=1e-6)  # float32 sums


def test_tensorboard_is_told_where_it_is_asked_for(corpus_files, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train(small_run.recipe(tmp_path / "run", corpus_files, trackers=["tensorboard"]))
    events = EventAccumulator(str(folder / "trackers")).Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    logged = {e["step"]: e["loss"] for e in read_json_lines(folder / "log.jsonl") if "loss" in e}
    assert told == pytest.approx(logged, rel=1e-6)  # they keep float32


# --- the bar and the summary -------------------------------------------------------------------


def test_the_bar_shows_what_is_known():
    entry = {"loss": 4.0, "train_perplexity": 12.3456, "learning_rate": 7e-4}
    entry |= {"tokens_per_second": 12345.6, "padding_share": 0.0312, "mfu": 0.417, "seconds": 3}
    assert (
        bar_text(entry, "tokens", ["train_perplexity"])
        == "loss 4.000, perplexity 12.35, lr 7.00e-04, 12,346 tokens/s, padding 3.1%, mfu 41.7%"
    )
    assert bar_text({"loss": 4.0}, "images") == "loss 4.000"


def test_the_summary_takes_medians_the_best_and_the_mean():
    entries = [
        {"step": n, "loss": 5.0 - n, "tokens_per_second": speed, "padding_share": 0.02}
        for n, speed in ((1, 100.0), (2, 900.0), (3, 1200.0))
    ]
    entries += [
        {"step": 1, "validation_nll": 3.0, "averaged_checkpoints": 0},
        {"step": 2, "validation_nll": 2.5, "averaged_checkpoints": 0},
        {"step": 3, "validation_nll": 2.75, "averaged_checkpoints": 0},
        {"step": 3, "validation_nll": 0.0, "averaged_checkpoints": 2},
    ]
    assert run_summary(entries, MEASURES, "tokens") == {
        "training loss (smoothed targets) at the end": "2.0000",
        "tokens per second, median": "900",
        "padding, share of all positions, median": "2.0%",
        "best validation NLL of one checkpoint": "2.5000 (step 2)",
        "validation NLL of the mean of 2 checkpoints": "0.0000",
    }
    assert run_summary([], MEASURES, "tokens") == {}


def test_the_card_holds_the_summary_and_the_folder_the_curves(corpus_files, drawn_curves, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    card = Path(folder / "README.md").read_text(encoding="utf-8")
    for name, value in run_summary(
        read_json_lines(folder / "log.jsonl"), MEASURES, "tokens"
    ).items():
        assert f"| {name} | {value} |" in card
    assert (folder / "curves.png").stat().st_size > 10_000
