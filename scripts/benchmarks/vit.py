"""Speed of image models beside transformers' ViT: scripts/benchmarks/vit.py [--size small].

Both run in this process with the same weights' shapes and images, in turn: in each round a step of
one, then of the other. Ratios are medians of the rounds' ratios, of CPU time and of wall time;
above 1 ours is faster. `--folder DIR` measures whole training on a folder of class folders instead:
ours with reading and augmentation, `Trainer` with `ViTImageProcessorPil` on the same files.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import (
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from hf_vanilla import VanillaForImageClassification, VanillaVitConfig
from hf_vanilla.commands import run
from hf_vanilla.data.augmentation import Augmentation, augment
from hf_vanilla.data.image_batches import ImageReader, normalised
from hf_vanilla.data.images import LabelledImages, load_images

# width, layers, heads, feed-forward width, pixels, patch, images of a batch
SIZES = {
    "digits": (64, 4, 4, 128, 8, 2, 128),
    "small": (384, 12, 6, 1536, 224, 16, 4),
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """Speed of image models beside transformers' ViT."""

    size: str = field(default="digits", metadata={"help": f"one of {', '.join(SIZES)}"})
    folder: str | None = field(
        default=None, metadata={"help": "folder of class folders, for whole training"}
    )
    rounds: int = field(default=15, metadata={"help": "rounds measured"})
    warmup: int = field(default=3, metadata={"help": "rounds before them"})
    threads: int = field(default=1, metadata={"help": "of torch"})

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: choose one of {', '.join(SIZES)}")


def models(size: str, *, num_labels: int = 10) -> tuple[nn.Module, nn.Module]:
    """Transformers' ViT and ours, of one size."""
    width, layers, heads, fed, pixels, patch, _ = SIZES[size]
    theirs = ViTForImageClassification(
        ViTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=fed,
            image_size=pixels,
            patch_size=patch,
            num_labels=num_labels,
        )
    )
    ours = VanillaForImageClassification(
        VanillaVitConfig(
            d_model=width,
            encoder_layers=layers,
            encoder_attention_heads=heads,
            encoder_ffn_dim=fed,
            image_size=pixels,
            patch_size=patch,
            num_labels=num_labels,
        )
    )
    return theirs, ours


def seconds(action: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall time of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - cpu, time.perf_counter() - wall


def ratios(
    theirs: Callable[[], object], ours: Callable[[], object], *, rounds: int, warmup: int
) -> tuple[float, float]:
    """Medians of the rounds' ratios, theirs to ours: CPU time, wall time."""
    cpu, wall = [], []
    for number in range(warmup + rounds):
        pair = (theirs, ours) if number % 2 else (ours, theirs)  # neither always runs first
        taken = dict(zip(pair, map(seconds, pair), strict=True))
        if number >= warmup:
            cpu.append(taken[theirs][0] / taken[ours][0])
            wall.append(taken[theirs][1] / taken[ours][1])
    return statistics.median(cpu), statistics.median(wall)


def step_of(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A training step: forward, backward and update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model.train()
        model(pixel_values=images, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def inference_of(model: nn.Module, images: Tensor) -> Callable[[], None]:
    """A forward pass without gradients."""

    def infer() -> None:
        model.eval()
        with torch.inference_mode():
            model(pixel_values=images)

    return infer


def benchmark_models(options: BenchmarkOptions) -> None:
    """Print ratios of training and inference."""
    pixels, count = SIZES[options.size][4], SIZES[options.size][6]
    images, labels = torch.randn(count, 3, pixels, pixels), torch.arange(count) % 10
    theirs, ours = models(options.size)
    rounds = {"rounds": options.rounds, "warmup": options.warmup}
    for what, pair in (
        ("training step", [step_of(model, images, labels) for model in (theirs, ours)]),
        ("inference", [inference_of(model, images) for model in (theirs, ours)]),
    ):
        cpu, wall = ratios(*pair, **rounds)
        print(f"{options.size}, {what}: {cpu:.2f} times in CPU time, {wall:.2f} in wall time")


# --- whole training ------------------------------------------------------------------------------


class TheirRows(torch.utils.data.Dataset):
    """A folder as users of Trainer read it: one image at a time through the image processor."""

    def __init__(self, images: LabelledImages, processor: ViTImageProcessorPil) -> None:
        self.images, self.processor = images, processor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict:
        """Pixels and label of one image."""
        pixels = self.processor(self.images.open(row), return_tensors="pt")["pixel_values"][0]
        return {"pixel_values": pixels, "labels": int(self.images.labels[row])}


def their_epochs(images: LabelledImages, model: nn.Module, pixels: int, batch: int) -> None:
    """Two epochs by Trainer."""
    processor = ViTImageProcessorPil(size={"height": pixels, "width": pixels})
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch,
            num_train_epochs=2,
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=TheirRows(images, processor)).train()


def our_epochs(images: LabelledImages, model: nn.Module, pixels: int, batch: int) -> None:
    """Two epochs with the reader, the augmentation and the model of this package."""
    reader = ImageReader(images, (pixels, pixels))
    changes = Augmentation(rotation=10, scale=0.1, shift=0.1, flip=0.5)
    optimizer, generator = torch.optim.AdamW(model.parameters(), fused=True), torch.Generator()
    for _ in range(2):
        for rows in torch.randperm(len(images), generator=generator).split(batch):
            values, labels = reader.read(rows.tolist())
            values = augment(values.float() / 255, changes, generator)
            values = normalised(values, [0.5] * 3, [0.5] * 3)
            model(pixel_values=values, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def benchmark_folder(options: BenchmarkOptions) -> None:
    """Print the ratio of images per second over two epochs."""
    images = load_images(str(options.folder))
    pixels, batch = SIZES[options.size][4], SIZES[options.size][6]
    theirs, ours = models(options.size, num_labels=len(images.label_names))
    cpu, wall = ratios(
        lambda: their_epochs(images, theirs, pixels, batch),
        lambda: our_epochs(images, ours, pixels, batch),
        rounds=max(1, options.rounds // 5),
        warmup=0,
    )
    print(f"whole training: {cpu:.2f} times the images per CPU second, {wall:.2f} per second")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


def benchmark(options: BenchmarkOptions) -> None:
    """Measure what the options ask for."""
    torch.set_num_threads(options.threads)
    if options.folder is None:
        benchmark_models(options)
    else:
        benchmark_folder(options)


if __name__ == "__main__":
    run(benchmark, BenchmarkOptions)
