"""Speed of image models beside transformers' ViT: scripts/benchmarks/vit.py [--size small].

Both run in this process with the same weights' shapes and images, in turn: in each round a step of
one, then of the other. Ratios are medians of the rounds' ratios, of CPU time and of wall time;
above 1 ours is faster. Peak memory is that of tensors beside the weights. `--folder DIR` measures
whole training on a folder of class folders instead: ours with reading and augmentation, `Trainer`
with `ViTImageProcessorPil` on the same files. `--folder digits` writes the built-in digits there.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import (
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from hf_vanilla import VanillaForImageClassification, VanillaVitConfig
from hf_vanilla.commands import run
from hf_vanilla.data.images import BUILT_IN_DIGITS, LabelledImages, load_images
from hf_vanilla.options import Options, option
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

# width, layers, heads, feed-forward width, pixels, patch, images of a batch
SIZES = {
    "digits": (64, 4, 4, 128, 8, 2, 128),
    "small": (384, 12, 6, 1536, 224, 16, 4),
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Options):
    """Speed of image models beside transformers' ViT."""

    size: str = field(default="digits", metadata={"help": f"one of {', '.join(SIZES)}"})
    folder: str | None = field(
        default=None, metadata={"help": "folder of class folders, or digits, for whole training"}
    )
    rounds: int = option(15, "rounds measured", at_least=1)
    warmup: int = option(3, "rounds before them", at_least=0)
    epochs: int = option(10, "of whole training", at_least=1)
    threads: int = option(1, "of torch", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: choose one of {', '.join(SIZES)}")


def their_model(size: str, *, num_labels: int = 10) -> nn.Module:
    """Transformers' ViT."""
    width, layers, heads, fed, pixels, patch, _ = SIZES[size]
    return ViTForImageClassification(
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


def our_model(size: str) -> nn.Module:
    """Ours of the same size."""
    width, layers, heads, fed, pixels, patch, _ = SIZES[size]
    return VanillaForImageClassification(
        VanillaVitConfig(
            d_model=width,
            encoder_layers=layers,
            encoder_attention_heads=heads,
            encoder_ffn_dim=fed,
            image_size=pixels,
            patch_size=patch,
            num_labels=10,
        )
    )


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


def batch_of(size: str) -> tuple[Tensor, Tensor]:
    """Images and labels of one batch."""
    pixels, count = SIZES[size][4], SIZES[size][6]
    return torch.randn(count, 3, pixels, pixels), torch.arange(count) % 10


def peak_of(action: Callable[[], object]) -> float:
    """Largest sum of the tensors that one call allocates, in MiB."""
    action()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    events = profiler.profiler.kineto_results.events()
    found = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    return max(accumulate(event.nbytes() for event in found)) / 2**20


def benchmark_models(options: BenchmarkOptions) -> None:
    """Print ratios of training and inference."""
    images, labels = batch_of(options.size)
    theirs, ours = their_model(options.size), our_model(options.size)
    rounds = {"rounds": options.rounds, "warmup": options.warmup}
    for what, pair in (
        ("training step", [step_of(model, images, labels) for model in (theirs, ours)]),
        ("inference", [inference_of(model, images) for model in (theirs, ours)]),
    ):
        cpu, wall = ratios(*pair, **rounds)
        print(f"{options.size}, {what}: {cpu:.2f} times in CPU time, {wall:.2f} in wall time")
        memory = [f"{peak_of(action):.2f} MiB" for action in pair]
        print(f"{options.size}, {what}: {memory[1]} at its peak, transformers' ViT {memory[0]}")


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


def train_theirs(images: LabelledImages, model: nn.Module, options: BenchmarkOptions) -> None:
    """Train by Trainer."""
    pixels, batch = SIZES[options.size][4], SIZES[options.size][6]
    processor = ViTImageProcessorPil(size={"height": pixels, "width": pixels})
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch,
            max_steps=options.epochs * len(images) // batch,
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=TheirRows(images, processor))
        trainer.train()
        trainer.save_model()


def train_ours(images: LabelledImages, options: BenchmarkOptions) -> None:
    """Train as the command does, with augmentation, from statistics to saved model."""
    width, layers, heads, fed, pixels, patch, batch = SIZES[options.size]
    with tempfile.TemporaryDirectory() as folder:
        recipe = f"""
        --task image_classification --dataset {images.origin} --output_dir {folder}/run
        --max_steps {options.epochs * len(images) // batch} --save_steps 1000000 --trackers none
        --images_per_step {batch} --images_per_batch {batch} --optimizer adamw --use_cpu true
        --rotation 10 --scale 0.1 --shift 0.1 --flip 0.5 --average_checkpoints 1
        --model.image_size {pixels} --model.patch_size {patch} --model.d_model {width}
        --model.encoder_layers {layers} --model.encoder_attention_heads {heads}
        --model.encoder_ffn_dim {fed}
        """
        train(read_recipe(recipe.split()))


@contextmanager
def image_folder(name: str) -> Iterator[str]:
    """The folder of that name, or the built-in digits as PNG files in a temporary folder."""
    if name != BUILT_IN_DIGITS:
        yield name
        return
    digits = load_images(name)
    with tempfile.TemporaryDirectory() as folder:
        for label in digits.label_names:
            (Path(folder) / label).mkdir()
        for row, label in enumerate(digits.labels.tolist()):
            digits.open(row).save(Path(folder) / digits.label_names[label] / f"{row}.png")
        yield folder


def benchmark_folder(folder: str, options: BenchmarkOptions) -> None:
    """Print the ratio of images per second."""
    images = load_images(folder)
    theirs = their_model(options.size, num_labels=len(images.label_names))
    cpu, wall = ratios(
        lambda: train_theirs(images, theirs, options),
        lambda: train_ours(images, options),
        rounds=max(1, options.rounds // 5),
        warmup=0,
    )
    print(f"whole training: {cpu:.2f} times the images per CPU second, {wall:.2f} per second")


def benchmark(options: BenchmarkOptions) -> None:
    """Measure what the options ask for."""
    torch.set_num_threads(options.threads)
    if options.folder is None:
        benchmark_models(options)
        return
    with image_folder(options.folder) as folder:
        benchmark_folder(folder, options)


if __name__ == "__main__":
    run(benchmark, BenchmarkOptions)
