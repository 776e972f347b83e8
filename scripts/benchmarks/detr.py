"""Speed of DETR beside transformers' or the authors': training step, matching and loss, inference.

Both have the same shapes and the same trainable weights; in each round each makes one step, in
turn. Shown are medians of milliseconds of wall and of CPU time, and of the rounds' ratios.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from detr_official import official_detr
from torch import Tensor, nn
from transformers import DetrConfig, DetrForObjectDetection, PreTrainedConfig, ResNetConfig
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

from hf_vanilla.commands import run
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.loss_vanilla_detr import Targets, detection_loss, padded_targets
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.options import Options, option

Criterion = Callable[[dict[str, Any], list[dict[str, Tensor]]], Tensor]
SMALL = {
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 256,
    "decoder_layers": 3,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 256,
    "num_queries": 12,
    "num_labels": 10,
}
RATES = "dropout", "attention_dropout", "activation_dropout"  # transformers' defaults are others
OBJECTS = 4  # of each image


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Options):
    """Speed of DETR beside transformers' own."""

    size: str = field(default="small", metadata={"help": "small (digit scenes) or r50"})
    batch_size: int = option(32, "images", at_least=1)
    height: int = option(64, "pixels", at_least=1)
    width: int = option(64, "pixels", at_least=1)
    rounds: int = option(7, "steps measured of each", at_least=1)
    threads: int = option(1, "of this process", at_least=1)
    official: str | None = field(
        default=None, metadata={"help": "clone of the authors' repository to compare with"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in ("small", "r50"):
            raise ValueError(f"size={self.size!r}: choose small or r50")


def models(size: str) -> tuple[nn.Module, nn.Module]:
    """Ours and transformers', with the same weights trainable: no BatchNorm, as both fix it."""
    backbone = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64], depths=[1, 2], layer_type="basic"
    )
    sizes = SMALL | dict.fromkeys(RATES, 0.0)  # as the recipe digit_scenes
    if size == "r50":
        backbone, sizes = ResNetConfig(), {"num_labels": 91} | dict.fromkeys(RATES, 0.1)
    backbone = ResNetConfig(
        **backbone.to_diff_dict() | {"out_features": [f"stage{len(backbone.depths)}"]}
    )
    ours = VanillaForObjectDetection(VanillaDetrConfig(backbone_config=backbone, **sizes))
    theirs = DetrForObjectDetection(
        DetrConfig(backbone_config=backbone, auxiliary_loss=True, **sizes)
    )
    for model in (ours, theirs):
        for name, weight in model.named_parameters():
            is_fixed = "normalization" in name or "embedder" in name or "stages.0" in name
            weight.requires_grad_(not ("backbone" in name and is_fixed))
    counts = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (ours, theirs)]
    if counts[0] != counts[1]:
        raise ValueError(f"other weights are trainable: {counts[0]:,} and {counts[1]:,}")
    return ours, theirs


def measure(options: BenchmarkOptions) -> None:
    """Print a table."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    ours, theirs = models(options.size)
    pixels = torch.randn(options.batch_size, 3, options.height, options.width)
    classes = ours.config.num_labels
    targets = [
        {
            "class_labels": torch.randint(classes, (OBJECTS,)),
            "boxes": 0.2 + 0.3 * torch.rand(OBJECTS, 4),
        }
        for _ in range(options.batch_size)
    ]
    padded = padded_targets(targets)

    def training(model: nn.Module, **labels: object) -> Callable[[], None]:
        def step() -> None:
            model.train()
            model.zero_grad()
            model(pixel_values=pixels, **labels).loss.backward()

        return step

    def inference(model: nn.Module) -> Callable[[], None]:
        @torch.inference_mode()
        def step() -> None:
            model.eval()
            model(pixels)

        return step

    print(f"{options.size}, {options.batch_size} images of {options.height} x {options.width}")
    their_step, their_losses = training(theirs, labels=targets), losses(theirs, targets)
    if options.official is not None:
        theirs, criterion = official_detr(Path(options.official), ours)
        renamed = [{"labels": row["class_labels"], "boxes": row["boxes"]} for row in targets]
        check_equal(ours, theirs, criterion, pixels, padded, renamed)
        their_step = official_step(theirs, criterion, pixels, renamed)
        their_losses = official_losses(ours, criterion, targets, renamed)
    name = "transformers" if options.official is None else "official"
    compare(
        "training step",
        training(ours, labels=padded.labels, boxes=padded.boxes),
        their_step,
        options.rounds,
        name,
    )
    compare("matching, loss", *their_losses, options.rounds, name)
    compare("inference", inference(ours), inference(theirs), options.rounds, name)


def check_equal(
    ours: nn.Module,
    theirs: nn.Module,
    criterion: Criterion,
    pixels: Tensor,
    padded: Targets,
    targets: list[dict[str, Tensor]],
) -> None:
    """Print the largest differences of outputs and loss in evaluation mode."""
    with torch.no_grad():
        mine = ours.eval()(pixels, labels=padded.labels, boxes=padded.boxes)
        other = theirs.eval()(pixels)
    differences = {
        "logits": (mine.logits - other["pred_logits"]).abs().max(),
        "boxes": (mine.pred_boxes - other["pred_boxes"]).abs().max(),
        "loss": (mine.loss - criterion(other, targets)).abs(),
    }
    print(", ".join(f"{name} differ by {float(value):.1e}" for name, value in differences.items()))


def official_step(
    theirs: nn.Module, criterion: Criterion, pixels: Tensor, targets: list[dict[str, Tensor]]
) -> Callable[[], None]:
    """A training step of the authors' model."""

    def step() -> None:
        theirs.train()
        theirs.zero_grad()
        criterion(theirs(pixels), targets).backward()

    return step


def random_outputs(config: PreTrainedConfig, count: int) -> tuple[Tensor, Tensor]:
    """Logits and boxes of all layers, which need gradients."""
    shape = config.decoder_layers, count, config.num_queries
    logits = torch.randn(*shape, config.num_labels + 1, requires_grad=True)
    return logits, torch.rand(*shape, 4, requires_grad=True)


def official_losses(
    ours: nn.Module,
    criterion: Criterion,
    targets: list[dict[str, Tensor]],
    renamed: list[dict[str, Tensor]],
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The loss alone on random outputs of all layers: ours, the authors'."""
    logits, boxes = random_outputs(ours.config, len(targets))

    def mine() -> None:
        detection_loss(ours.config, logits, boxes, padded_targets(targets))[0].backward()

    def other() -> None:
        layers = [
            {"pred_logits": one, "pred_boxes": box} for one, box in zip(logits, boxes, strict=True)
        ]
        criterion(layers[-1] | {"aux_outputs": layers[:-1]}, renamed).backward()

    return mine, other


def losses(
    theirs: nn.Module, targets: list[dict[str, Tensor]]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The loss alone on random outputs of all layers: ours, transformers'."""
    config = theirs.config
    logits, boxes = random_outputs(config, len(targets))

    def ours() -> None:
        detection_loss(config, logits, boxes, padded_targets(targets))[0].backward()

    def other() -> None:
        ForObjectDetectionLoss(logits[-1], targets, "cpu", boxes[-1], config, logits, boxes)[
            0
        ].backward()

    return ours, other


def compare(
    name: str, ours: Callable[[], None], theirs: Callable[[], None], rounds: int, other_name: str
) -> None:
    """Print medians of two alternating functions."""
    walls: list[tuple[float, float]] = []
    cpus: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        seconds = [seconds_of(function) for function in (ours, theirs)]
        if number:  # the first is a warm-up
            walls.append((seconds[0][0], seconds[1][0]))
            cpus.append((seconds[0][1], seconds[1][1]))
    for kind, pairs in (("wall", walls), ("CPU", cpus)):
        mine, other = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(
            f"{name:15} {kind:4}  ours {mine:9.1f} ms  {other_name} {other:9.1f} ms  {ratio:.2f}x"
        )


def seconds_of(function: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    run(measure, BenchmarkOptions)
