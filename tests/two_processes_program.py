"""Run by torchrun on two processes with one folder: what processes agree on."""

import sys
from itertools import islice
from pathlib import Path

import pytest
import small_run
import torch
from torch import nn

from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.preparation import check_shared, prepare_run
from hf_vanilla.training.processes import average_running_statistics, make_accelerator
from hf_vanilla.training.train_step import training_steps


def main(folder):
    accelerator = make_accelerator(TrainRecipe(use_cpu=True))
    check_folders(accelerator, folder)
    check_statistics(accelerator)
    check_micro_batches(folder)
    if accelerator.is_main_process:
        sys.stdout.write("agreed\n")
    accelerator.free_memory()
    accelerator.end_training()


def check_folders(accelerator, folder):
    """A folder for each process, as on two machines, is refused; one folder for both is not."""
    rank = accelerator.process_index
    own = folder / str(rank)
    own.mkdir()
    newest = [None, own / "checkpoint-10"][rank]
    told = "process 1 does not see .* start from checkpoint-10, process 0 from the first step"
    with pytest.raises(ValueError, match=told):
        check_shared(accelerator, own, newest)
    check_shared(accelerator, folder, None)
    accelerator.wait_for_everyone()
    assert not [*folder.rglob("*.partial")]


def check_micro_batches(folder):
    """Three micro-batches become four, two for each process: no token of a step is left out."""
    files = small_run.write_corpus(folder)
    run = prepare_run(small_run.recipe(folder / "run", files, tokens_per_batch=80))
    assert run.task.micro_batches == 3
    assert run.per_step == 4
    ((_, parts),) = islice(training_steps(run, 0), 1)
    assert [part.number for part in parts] == [[0, 2], [1, 3]][run.accelerator.process_index]


def check_statistics(accelerator):
    """BatchNorm's running statistics are averaged, weights are not."""
    rank = accelerator.process_index
    model = nn.Sequential(nn.BatchNorm2d(2, momentum=1.0), nn.Linear(2, 2, bias=False))
    parallel = accelerator.prepare(model).train()
    images = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1) * torch.tensor([0.0, 2.0 + rank])
    for _ in range(2):  # at a second step nothing of the first process comes to the others
        parallel(images.view(1, 2, 1, 2)).sum().backward()
    own = model[0].running_mean.clone()
    torch.testing.assert_close(own, torch.tensor([1.0, 2.0]) * (2.0 + rank) / 2)
    average_running_statistics(model, accelerator)
    torch.testing.assert_close(model[0].running_mean, torch.tensor([1.25, 2.5]))
    torch.testing.assert_close(model[0].running_var, torch.tensor([3.25, 13.0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
