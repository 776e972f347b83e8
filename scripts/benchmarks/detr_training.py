"""Learning curves of DETR on digit scenes: ours, transformers' own, and ours with parts left out.

All train by the recipe `digit_scenes`: the same scenes, optimizer, rates and steps. Each run writes
one JSON line for each validation to `FOLDER/VARIANT-SEED.jsonl`; `--draw` draws all of them.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import DetrConfig, DetrForObjectDetection

from hf_vanilla.commands import run
from hf_vanilla.models import modeling_vanilla_detr
from hf_vanilla.models.loss_vanilla_detr import NO_LABEL
from hf_vanilla.objects.coco_scores import score_detections, without_overlaps
from hf_vanilla.objects.detector import Detector
from hf_vanilla.objects.task import ObjectDetectionTask, prepare
from hf_vanilla.plots.figures import figure_style, new_figure, save_figure
from hf_vanilla.training.optimization import make_optimizer, make_schedule
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.task import Batch

SHARED = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
SHARED += ("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "num_queries", "dropout")
SHARED += ("attention_dropout", "activation_dropout", "id2label", "label2id")


@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    """Train one variant of DETR on digit scenes and write its learning curve."""

    variant: str = field(
        default="ours",
        metadata={"help": "ours, transformers, no_auxiliary_losses, no_positions, no_class_cost"},
    )
    folder: str = field(default="runs/detr_training", metadata={"help": "of the curves"})
    digits: str = field(default="digits", metadata={"help": "digits, or a file of optdigits"})
    max_steps: int = field(default=6000, metadata={"help": "optimizer steps"})
    eval_steps: int = field(default=500, metadata={"help": "steps between validations"})
    seed: int = field(default=0, metadata={"help": "of weights and scenes"})
    draw: bool = field(default=False, metadata={"help": "only draw the curves in the folder"})

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"variant={self.variant!r}: choose one of {', '.join(VARIANTS)}")


def ours(task: ObjectDetectionTask, **changes: object) -> nn.Module:
    """Our model, with changed fields of its config."""
    model = task.model()
    for name, value in changes.items():
        setattr(model.config, name, value)
    return model


def transformers_own(task: ObjectDetectionTask) -> nn.Module:
    """`DetrForObjectDetection` with the same sizes and auxiliary losses."""
    config = task.model().config
    sizes = {name: getattr(config, name) for name in SHARED}
    return DetrForObjectDetection(
        DetrConfig(backbone_config=config.backbone_config, auxiliary_loss=True, **sizes)
    )


VARIANTS: dict[str, Callable[[ObjectDetectionTask], nn.Module]] = {
    "ours": ours,
    "transformers": transformers_own,
    "no_auxiliary_losses": lambda task: ours(task, auxiliary_loss=False),
    "no_positions": ours,  # see `no_positions`
    "no_class_cost": lambda task: ours(task, class_cost=0.0),
}


def no_positions(is_real: Tensor, width: int) -> Tensor:
    """Zeros in place of the sinusoids of the image, `(B, S, D)`."""
    return torch.zeros(len(is_real), is_real[0].numel(), width)


def train(options: CurveOptions) -> Path:
    """Train and validate; returns the file of the curve."""
    folder = Path(options.folder)
    if options.draw:
        return draw_curves(folder)
    chosen = {
        name: getattr(options, name) for name in ("digits", "seed", "max_steps", "eval_steps")
    }
    recipe = read_recipe(
        ["--recipe", "digit_scenes", *(f"--{name}={value}" for name, value in chosen.items())]
    )
    torch.manual_seed(options.seed)
    task = prepare(recipe)
    model = VARIANTS[options.variant](task)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{options.variant}-{options.seed}.jsonl"
    path.write_text("", encoding="utf-8")
    optimizer = make_optimizer(model, recipe.train)
    schedule = make_schedule(optimizer, recipe.train)
    order, generator = task.order(1), torch.Generator()
    replaced = no_positions if options.variant == "no_positions" else None
    started = time.process_time()
    with patch.object(
        modeling_vanilla_detr, "sinusoid_2d", replaced or modeling_vanilla_detr.sinusoid_2d
    ):
        for step in range(1, options.max_steps + 1):
            batch = task.batch(order[step - 1], generator)
            if options.variant == "transformers":
                batch = with_listed_targets(batch)
            model.train()
            model(**batch).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % options.eval_steps == 0 or step == options.max_steps:
                entry = {"step": step, "cpu_seconds": round(time.process_time() - started, 1)}
                entry |= validate(task, model, with_suppression=step == options.max_steps)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
                print(options.variant, json.dumps(entry), flush=True)
    return path


def with_listed_targets(batch: Batch) -> Batch:
    """The batch with the targets in transformers' form, one mapping for each image."""
    rows = zip(batch["labels"], batch["boxes"], strict=True)
    kept = [(labels[labels != NO_LABEL], boxes[labels != NO_LABEL]) for labels, boxes in rows]
    return {
        "pixel_values": batch["pixel_values"],
        "pixel_mask": batch["pixel_mask"],
        "labels": [{"class_labels": labels, "boxes": boxes} for labels, boxes in kept],
    }


def validate(
    task: ObjectDetectionTask, model: nn.Module, *, with_suppression: bool
) -> dict[str, float]:
    """AP of the validation scenes; at the end also with suppression of overlapping objects."""
    images = task.validation
    detector, found = Detector(model.eval(), task.processor), []
    for first in range(0, len(images), 50):
        rows = range(first, min(first + 50, len(images)))
        found += detector.detect([images.open(row) for row in rows])
    scores = score_detections(found, images)
    values = {"AP": scores.figures["AP"], "AP50": scores.figures["AP50"]}
    values["duplicates"] = scores.duplicates
    if with_suppression:
        suppressed = score_detections([without_overlaps(entry) for entry in found], images)
        values["AP_with_suppression"] = suppressed.figures["AP"]
    return {name: round(float(value), 4) for name, value in values.items()}


def draw_curves(folder: Path) -> Path:
    """A figure of AP50 over the steps of all runs in a folder."""
    path = folder / "curves.png"
    with figure_style() as theme:
        figure = new_figure((7, 4))
        axes = figure.subplots()
        colours = dict(zip(VARIANTS, theme.lines, strict=False))
        for file in sorted(folder.glob("*.jsonl")):
            variant = file.stem.rpartition("-")[0]
            entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            axes.plot(
                [entry["step"] for entry in entries],
                [entry["AP50"] for entry in entries],
                color=colours[variant],
                label=variant.replace("_", " "),
            )
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(handles.values(), handles.keys())
        axes.set(xlabel="step", ylabel="AP50", ylim=(0, 1), title="Digit scenes, unseen writers")
        save_figure(figure, path)
    return path


if __name__ == "__main__":
    run(train, CurveOptions)
