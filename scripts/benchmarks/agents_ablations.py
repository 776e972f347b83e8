"""What parts of AgentFormer bring: scripts/benchmarks/agents_ablations.py --dataset DIR.

Trains the first stage of the recipe `scenes_eth_ucy` as it is, without agent-aware weights and
without the latent, scores each on the test scene with 20 samples, and prints a row for each. The
parts are replaced here, while such a model is trained and scored; the package has no option for
them. It continues after a stop.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hf_vanilla.commands import run
from hf_vanilla.models import stacks_vanilla_agentformer
from hf_vanilla.models.stacks_vanilla_agentformer import FutureDecoder
from hf_vanilla.options import Options, option
from hf_vanilla.tracks.eth_ucy import TEST_FILES
from hf_vanilla.tracks.evaluation import EvaluateTracksOptions, evaluate_tracks
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

ROWS = ("first stage", "without agent-aware weights", "without latent")
SCORES = ("minADE20", "minFDE20", "minJADE20", "minJFDE20", "joint_collision_share")
SAMPLES = "20"


@dataclass(frozen=True, kw_only=True)
class AblationOptions(Options):
    """First stages of AgentFormer with a part replaced."""

    dataset: str = option(text="folder of ETH and UCY")
    test_scene: str = option("zara1", "scene to score", choices=tuple(TEST_FILES))
    output_dir: str = option("runs/ablations", "folder of the runs")
    max_steps: int | None = option(None, "of training; default: the recipe's", at_least=1)
    seed: int = option(0, "of training", at_least=0)


@contextmanager
def replaced(row: str) -> Iterator[None]:
    """A part of the model is replaced inside.

    Args:
        row: one of `ROWS`.
    """
    if row == "without agent-aware weights":
        # scores between steps of one agent stay those of the common pair
        with mock.patch.object(
            stacks_vanilla_agentformer, "with_own_scores", lambda scores, *_: scores
        ):
            yield
    elif row == "without latent":
        forward, one_pass = FutureDecoder.forward, FutureDecoder.one_pass

        def blind(method: Any) -> Any:
            return lambda self, scene, context, latents, rest: method(
                self, scene, context, latents * 0, rest
            )

        with mock.patch.multiple(FutureDecoder, forward=blind(forward), one_pass=blind(one_pass)):
            yield
    else:
        yield


def one_row(row: str, options: AblationOptions) -> str:
    """Train and score one of `ROWS`."""
    folder = (
        Path(options.output_dir) / f"{options.test_scene}_{options.seed}_{row.replace(' ', '_')}"
    )
    arguments = ["--recipe", "scenes_eth_ucy", "--dataset", options.dataset]
    arguments += ["--test_scene", options.test_scene, "--output_dir", str(folder)]
    arguments += ["--seed", str(options.seed), "--model.num_modes", SAMPLES]
    if options.max_steps is not None:
        steps = str(options.max_steps)
        arguments += ["--max_steps", steps, "--eval_steps", steps, "--save_steps", steps]
    with replaced(row):
        train(read_recipe(arguments))
        asked = {"dataset": options.dataset, "test_scene": options.test_scene, "batch_size": 256}
        values = evaluate_tracks(EvaluateTracksOptions(model=str(folder), **asked)).values
    return " | ".join([row, *(f"{values[name]:.3f}" for name in SCORES)])


def ablations(options: AblationOptions) -> str:
    """A table."""
    lines = [" | ".join(["model", *SCORES])]
    for row in ROWS:
        lines.append(one_row(row, options))
        print(lines[-1], flush=True)
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    print(run(ablations, AblationOptions))
