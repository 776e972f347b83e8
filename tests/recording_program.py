"""Train by a recipe in one or several processes, and write down the pairs of each step.

    recording_program.py RECIPE FOLDER

Each process appends a line of JSON per step to `FOLDER/RANK.jsonl`: the step's number, and the
target ids of its pairs.
"""

import json
import sys
from pathlib import Path

from hf_vanilla.training import run as training
from hf_vanilla.training.recipe import read_recipe


def main(recipe, folder):
    counting = training.sum_counts

    def recording(run, micro_batches):
        labels = [row for part in micro_batches for row in part.batch["labels"].tolist()]
        pairs = [[token for token in row if token != -100] for row in labels]
        step = micro_batches[0].number // run.per_step + 1
        with (Path(folder) / f"{run.accelerator.process_index}.jsonl").open("a") as file:
            file.write(json.dumps([step, pairs]) + "\n")
        return counting(run, micro_batches)

    training.sum_counts = recording
    training.train(read_recipe(["--recipe", recipe]))


if __name__ == "__main__":
    main(*sys.argv[1:])
