"""Speed of DETR beside transformers': training step, matching and loss, inference.

Both have the same shapes and the same trainable weights; in each round each makes one step, in
turn. Shown are medians of milliseconds of wall and of CPU time, and of the rounds' ratios.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

from hf_vanilla.commands import run
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.loss_vanilla_detr import detection_loss, padded_targets
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

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
class BenchmarkOptions:
    """Speed of DETR beside transformers' own."""

    size: str = field(default="small", metadata={"help": "small (digit scenes) or r50"})
    batch_size: int = field(default=32, metadata={"help": "images"})
    height: int = field(default=64, metadata={"help": "pixels"})
    width: int = field(default=64, metadata={"help": "pixels"})
    rounds: int = field(default=7, metadata={"help": "steps measured of each"})
    threads: int = field(default=1, metadata={"help": "of this process"})

    def __post_init__(self) -> None:
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
            model(pixel_values=pixels)

        return step

    print(f"{options.size}, {options.batch_size} images of {options.height} x {options.width}")
    compare(
        "training step",
        training(ours, labels=padded.labels, boxes=padded.boxes),
        training(theirs, labels=targets),
        options.rounds,
    )
    compare("matching, loss", *losses(theirs, targets), options.rounds)
    compare("inference", inference(ours), inference(theirs), options.rounds)


def losses(
    theirs: nn.Module, targets: list[dict[str, Tensor]]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The loss alone on random outputs of all layers: ours, transformers'."""
    config, count = theirs.config, len(targets)
    layers, queries = config.decoder_layers, config.num_queries
    logits = torch.randn(layers, count, queries, config.num_labels + 1, requires_grad=True)
    boxes = torch.rand(layers, count, queries, 4, requires_grad=True)

    def ours() -> None:
        detection_loss(logits, boxes, padded_targets(targets)).total.backward()

    def other() -> None:
        ForObjectDetectionLoss(logits[-1], targets, "cpu", boxes[-1], config, logits, boxes)[
            0
        ].backward()

    return ours, other


def compare(name: str, ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> None:
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
            f"{name:15} {kind:4}  ours {mine:9.1f} ms  transformers {other:9.1f} ms  {ratio:.2f}x"
        )


def seconds_of(function: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    run(measure, BenchmarkOptions)
