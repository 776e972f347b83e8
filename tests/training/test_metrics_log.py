"""What a run tells: operations as torch counts them, shares by hand, and nothing twice."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run
import torch
from accelerate import Accelerator
from torch.utils.flop_counter import FlopCounterMode

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.files import read_json_lines
from hf_vanilla.training import metrics_log
from hf_vanilla.training.metrics_log import (
    Progress,
    RunLog,
    bar_text,
    drop_later_entries,
    micro_batch_work,
    perplexity,
    run_summary,
    training_flops,
)
from hf_vanilla.training.run import train

# --- operations --------------------------------------------------------------------------------


def test_the_operations_are_those_that_torch_counts(tiny_config):
    tiny_config.head_dim, tiny_config.v_head_dim = 5, 3
    model = VanillaForConditionalGeneration(tiny_config)
    model.set_attn_implementation("eager")
    sentences, source, target = 2, 7, 10
    with FlopCounterMode(display=False) as counter:
        ids = torch.randint(3, 40, (sentences, source))
        model(input_ids=ids, labels=torch.randint(3, 40, (sentences, target))).loss.backward()
    lengths = torch.tensor([source] * sentences), torch.tensor([target] * sentences)
    # torch counts the masked half of causal attention too, which ours leaves out
    width = tiny_config.decoder_attention_heads * (5 + 3)
    pairs = sentences * (target**2) - (sentences * target**2) // 2
    masked = 6 * tiny_config.decoder_layers * width * pairs
    assert training_flops(tiny_config, *lengths) + masked == counter.get_total_flops()


def test_the_work_of_a_micro_batch_by_hand(tiny_config):
    batch = {
        "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "labels": torch.tensor([[5, 6, 7, 8, 1], [5, 1, -100, -100, -100]]),
    }
    flops = training_flops(tiny_config, torch.tensor([3, 1]), torch.tensor([5, 2]))
    assert micro_batch_work(tiny_config, batch).tolist() == [7, 11, 16, flops // 1000]


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


def test_the_log_tells_speed_padding_and_the_plain_perplexity(corpus_files, tmp_path):
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
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(metrics_log, "time", clock)
    log = RunLog(Accelerator(cpu=True), small_run.recipe(tmp_path, corpus_files), Progress())
    log.count(torch.tensor([600, 900, 1000, 1]))
    now[0] = 2.0
    with log.paused():
        now[0] = 52.0
    log.count(torch.tensor([400, 500, 500, 1]))
    now[0] = 55.0
    entry = log.train_line(4, Progress(), loss=1.0)
    assert entry["tokens_per_second"] == (600 + 400) / (2 + 3)
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

    folder = train(small_run.recipe(tmp_path / "run", corpus_files, trackers="tensorboard"))
    events = EventAccumulator(str(folder / "trackers")).Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    logged = {e["step"]: e["loss"] for e in read_json_lines(folder / "log.jsonl") if "loss" in e}
    assert told == pytest.approx(logged, rel=1e-6)  # they keep float32


# --- the bar and the summary -------------------------------------------------------------------


def test_the_bar_shows_what_is_known():
    entry = {"loss": 4.0, "train_perplexity": 12.3456, "learning_rate": 7e-4}
    entry |= {"tokens_per_second": 12345.6, "padding_share": 0.0312, "mfu": 0.417, "seconds": 3}
    assert (
        bar_text(entry) == "loss 4.000, ppl 12.35, lr 7.00e-04, 12,346 tok/s, pad 3.1%, mfu 41.7%"
    )
    assert bar_text({"loss": 4.0}) == "loss 4.000"


def test_a_perplexity_beyond_all_floats_is_held():
    assert perplexity(1e6) == perplexity(700.0)


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
    assert run_summary(entries) == {
        "training loss at the end (smoothed targets)": "2.0000",
        "target tokens per second, median": "900",
        "padding, share of all places, median": "2.0%",
        "best validation NLL of one checkpoint": "2.5000 (step 2)",
        "validation NLL of the mean of 2 checkpoints": "0.0000, perplexity 1.00",
    }
    assert run_summary([]) == {}


def test_the_card_holds_the_summary_and_the_folder_the_curves(corpus_files, tmp_path):
    folder = train(small_run.recipe(tmp_path / "run", corpus_files))
    card = Path(folder / "README.md").read_text(encoding="utf-8")
    for name, value in run_summary(read_json_lines(folder / "log.jsonl")).items():
        assert f"| {name} | {value} |" in card
    assert (folder / "curves.png").stat().st_size > 10_000
