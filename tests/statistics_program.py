"""Run by torchrun on two processes: BatchNorm's running statistics are averaged, others stay."""

import sys

import torch
from torch import nn

from hf_vanilla.recipes.recipe import TrainRecipe
from hf_vanilla.training.processes import average_running_statistics, make_accelerator


def main():
    accelerator = make_accelerator(TrainRecipe(use_cpu=True))
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
    if accelerator.is_main_process:
        sys.stdout.write("averaged\n")
    del parallel  # before its process group
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
