"""One update: what compiling and recomputing may not change, and what stops a run."""

import contextlib
import multiprocessing
import weakref
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import small_run
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from hf_vanilla.files import read_json_lines
from hf_vanilla.training import run as training
from hf_vanilla.training import train_step
from hf_vanilla.training.preparation import PreparedRun, prepare_run
from hf_vanilla.training.run import train
from hf_vanilla.training.train_step import Gradients, _Batches, sum_counts, training_steps


def losses_of(folder):
    return [entry["loss"] for entry in read_json_lines(folder / "log.jsonl") if "loss" in entry]


def test_recomputing_the_forward_pass_changes_no_weight(corpus_files, tmp_path):
    folders = [
        train(small_run.recipe(tmp_path / str(again), corpus_files, gradient_checkpointing=again))
        for again in (False, True)
    ]
    plain, recomputed = (small_run.weights(folder) for folder in folders)
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


def test_recomputing_is_really_done(corpus_files, tmp_path):
    run = prepare_run(small_run.recipe(tmp_path / "run", corpus_files, gradient_checkpointing=True))
    assert run.model.is_gradient_checkpointing


def test_a_run_says_that_its_first_steps_compile(corpus_files, tmp_path, caplog):
    with caplog.at_level("INFO"):
        prepare_run(small_run.recipe(tmp_path / "run", corpus_files, compile=True))
    assert "compiled in the first steps" in caplog.text


@pytest.mark.release
def test_a_compiled_run_has_the_losses_of_a_plain_one(corpus_files, tmp_path):
    # dropout draws other numbers in a compiled graph
    options = {"model": {"dropout": 0.0}, "logging_steps": 1}
    folders = [
        train(small_run.recipe(tmp_path / str(is_on), corpus_files, compile=is_on, **options))
        for is_on in (False, True)
    ]
    plain, compiled = map(losses_of, folders)
    assert compiled == pytest.approx(plain, rel=1e-5)  # fused float32 sums in another order
    names = [small_run.weights(folder).keys() for folder in folders]
    assert names[0] == names[1]


def test_narrow_logits_are_not_copied_to_float32(corpus_files, tmp_path, fresh_accelerator):
    run = prepare_run(small_run.recipe(tmp_path / "run", corpus_files, mixed_precision="bf16"))
    seen = []
    run.model.register_forward_hook(lambda *parts: seen.append(parts[2]))
    ((_, parts),) = islice(training_steps(run, 0), 1)
    losses = Gradients(run).add(parts[0], sum_counts(run, parts), is_logged=True)
    assert seen[0].logits.dtype == torch.bfloat16
    assert {value.dtype for value in losses.values()} == {torch.float32}
    assert next(run.model.parameters()).dtype == torch.float32


def test_a_bf16_run_learns_as_a_float32_one(corpus_files, tmp_path, fresh_accelerator):
    options = {"logging_steps": 1, "mixed_precision": "bf16"}
    narrow = losses_of(train(small_run.recipe(tmp_path / "narrow", corpus_files, **options)))
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    options["mixed_precision"] = "no"
    wide = losses_of(train(small_run.recipe(tmp_path / "wide", corpus_files, **options)))
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.02)  # 8 bits of mantissa


def test_processes_exchange_gradients_at_the_last_micro_batch_of_a_step_only(
    corpus_files, tmp_path, monkeypatch
):
    apart, backward = [], []
    real_no_sync, real_backward = Accelerator.no_sync, Accelerator.backward

    @contextlib.contextmanager
    def no_sync(self, model):
        apart.append(True)
        with real_no_sync(self, model):
            yield
        apart.pop()

    def noting(self, loss, **options):
        backward.append(bool(apart))
        return real_backward(self, loss, **options)

    monkeypatch.setattr(Accelerator, "no_sync", no_sync)
    monkeypatch.setattr(Accelerator, "backward", noting)
    options = {"max_steps": 2, "tokens_per_batch": 80}  # three micro-batches a step
    train(small_run.recipe(tmp_path / "run", corpus_files, average_checkpoints=1, **options))
    assert backward == [True, True, False] * 2


def test_batches_made_by_worker_processes_give_the_same_weights(corpus_files, tmp_path):
    folders = [
        train(
            small_run.recipe(
                tmp_path / str(workers),
                corpus_files,
                tokens_per_batch=80,
                dataloader_workers=workers,
            )
        )
        for workers in (0, 2)
    ]
    alone, helped = (small_run.weights(folder) for folder in folders)
    assert all(torch.equal(alone[name], helped[name]) for name in alone)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_while_a_batch_is_made_keeps_its_message(
    workers, corpus_files, tmp_path, monkeypatch
):
    run = prepare_run(small_run.recipe(tmp_path, corpus_files, dataloader_workers=workers))

    def batch(*_):
        raise ValueError("red/3.png is damaged: replace it")

    monkeypatch.setattr(type(run.task), "batch", batch)
    with pytest.raises(ValueError, match=r"^red/3\.png is damaged: replace it$"):
        next(training_steps(run, 0))


def test_worker_processes_end_with_a_run_that_fails(corpus_files, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(training, "update_weights", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(small_run.recipe(tmp_path / "run", corpus_files, dataloader_workers=1))
    assert not multiprocessing.active_children()  # or Python would wait for them at its exit


def test_no_batch_is_kept_until_the_next_reading_on_a_gpu(corpus_files, tmp_path, monkeypatch):
    counting, seen, alive = training.sum_counts, [], []

    def noting(run, micro_batches):
        alive.append(sum(reference() is not None for reference in seen))
        seen.extend(weakref.ref(part.batch["labels"]) for part in micro_batches)
        return counting(run, micro_batches)

    monkeypatch.setattr(training, "sum_counts", noting)
    monkeypatch.setattr(training, "_is_read", lambda _, step, __: step == 12)  # the rule for GPUs
    often = {"max_steps": 12, "save_steps": 12, "logging_steps": 12, "average_checkpoints": 1}
    budget = {"tokens_per_batch": 120, "dataloader_workers": 1}
    train(small_run.recipe(tmp_path / "run", corpus_files, **often, **budget))
    assert max(alive) <= 2  # the two of the step before


def test_each_micro_batch_has_dropout_and_augmentation_of_its_own_by_its_number(
    corpus_files, tmp_path
):
    run = prepare_run(small_run.recipe(tmp_path / "run", corpus_files))
    run.model.train()
    ((_, (part,)),) = islice(training_steps(run, 0), 1)
    totals, gradients = sum_counts(run, [part]), Gradients(run)
    losses = [
        gradients.add(replace(part, number=number), totals, is_logged=False)["loss"].item()
        for number in (4, 5, 4)
    ]
    assert losses[0] == losses[2] != losses[1]
    task = SimpleNamespace(batch=lambda _, generator: torch.rand(3, generator=generator).tolist())
    data = _Batches(task, range(9), seed=0)
    assert data[4] == data[4] != data[5]


class ReplayedPasses:
    """A `StepGraph` without a GPU: it sees only the arrays of its capture."""

    captured = 0

    def __init__(self, function, *inputs, pool=None):
        type(self).captured += 1
        self.function, self.inputs = function, [values.clone() for values in inputs]
        self.written = self.gradients()

    def gradients(self):
        (run,) = (
            c.cell_contents for c in self.function.__closure__ if hasattr(c.cell_contents, "order")
        )
        return [weight.grad.data_ptr() for weight in run.model.parameters()]

    def __call__(self, *inputs):
        assert self.gradients() == self.written
        for own, values in zip(self.inputs, inputs, strict=True):
            own.copy_(values)
        return self.function(*self.inputs)


@pytest.mark.parametrize(
    ("change", "captures"),
    [
        ({}, True),
        ({"device": "cpu"}, False),
        ({"distributed_type": DistributedType.MULTI_GPU}, False),
        ({"mixed_precision": "fp16"}, False),
        ({"has_few_shapes": False}, False),
        ({"gradient_checkpointing": True}, False),
    ],
)
def test_only_passes_that_read_no_value_on_one_gpu_are_captured(change, captures):
    facts = {
        "device": "cuda",
        "distributed_type": DistributedType.NO,
        "mixed_precision": "bf16",
        "has_few_shapes": True,
        "gradient_checkpointing": False,
        **change,
    }
    facts["device"] = torch.device(facts["device"])
    each = SimpleNamespace(**facts)
    run = SimpleNamespace(accelerator=each, task=each, options=each)
    assert PreparedRun.captures.fget(run) is captures


@pytest.mark.parametrize("rdrop", [0.0, 2.0])
def test_a_captured_run_has_the_weights_of_a_plain_one(corpus_files, tmp_path, monkeypatch, rdrop):
    options = {"length_buckets": 2, "tokens_per_batch": 60, "logging_steps": 3, "max_steps": 12}
    options |= {"rdrop_alpha": rdrop, "average_checkpoints": 1, "save_steps": 6}
    plain = train(small_run.recipe(tmp_path / "plain", corpus_files, **options))
    monkeypatch.setattr(PreparedRun, "captures", True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(train_step, "StepGraph", ReplayedPasses)
    monkeypatch.setattr(ReplayedPasses, "captured", 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (9 - ReplayedPasses.captured, 9))
    captured = train(small_run.recipe(tmp_path / "captured", corpus_files, **options))
    assert ReplayedPasses.captured == 2  # then the memory is full; two shapes, logged or not
    assert losses_of(captured) == losses_of(plain)
    weights = [small_run.weights(folder) for folder in (plain, captured)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


# --- numbers that are none ---------------------------------------------------------------------


def test_the_batch_of_a_loss_that_is_no_number_is_kept_to_be_looked_at(
    corpus_files, tmp_path, monkeypatch
):
    recipe = small_run.recipe(tmp_path / "run", corpus_files, tokens_per_batch=120)
    counting = training.sum_counts

    def breaking(run, micro_batches):
        if micro_batches[0].number // run.per_step == 2:
            run.model.model.shared.weight.data.fill_(torch.inf)
        return counting(run, micro_batches)

    monkeypatch.setattr(training, "sum_counts", breaking)
    # as on a GPU, where step 3 is read together with step 4
    monkeypatch.setattr(training, "_is_read", lambda _, step, __: step % 2 == 0)
    told_before = r"the loss is nan at step 3, learning rate 0\.003.* choose another output_dir"
    with pytest.raises(ValueError, match=f"{told_before}.*; checkpoint-2 is unchanged") as told:
        train(recipe)
    path = tmp_path / "run" / "not-finite-step-3-process-0.pt"
    assert str(path) in str(told.value)
    kept = torch.load(path)
    assert (kept["step"], kept["learning_rate"]) == (3, pytest.approx(0.003))
    ((_, expected),) = islice(training_steps(prepare_run(recipe), 2), 1)
    assert len(kept["micro_batches"]) == 2
    for one, other in zip(kept["micro_batches"], expected, strict=True):
        assert all(torch.equal(one[name], other.batch[name]) for name in other.batch)


def test_weights_that_are_no_numbers_do_not_reach_a_checkpoint(corpus_files, tmp_path, monkeypatch):
    updating, updates = training.update_weights, []

    def overflowing(run):
        updating(run)
        updates.append(1)
        if len(updates) == 4:  # after the loss was computed, as by an infinite gradient
            run.model.model.shared.weight.data[5, 3] = torch.inf

    monkeypatch.setattr(training, "update_weights", overflowing)
    with pytest.raises(ValueError, match="a weight is not a finite number at step 4"):
        train(small_run.recipe(tmp_path / "run", corpus_files))
    assert [p.name for p in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
