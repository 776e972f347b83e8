"""What a run tells while it trains: speed, padding, loss; on a bar, in a log, to trackers.

Shapes: B batch, S source, T target, V vocabulary.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm import tqdm

from hf_vanilla.files import read_json_lines, write_files
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.plots.curves import LOG_FILE
from hf_vanilla.recipes.recipe import Recipe

from .processes import peak_flops


@dataclass
class Progress:
    """Where a run stands; saved with each checkpoint.

    Attributes:
        step: optimizer steps done.
        target_tokens: real target tokens seen.
        seconds: time of training, validation and saving included.
        best: value of the best validation; None before the first.
        stale: validations since then.
    """

    step: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    stale: int = 0


def training_flops(config: VanillaConfig, source_lengths: Tensor, target_lengths: Tensor) -> int:
    """Floating-point operations of the products of one forward and backward pass.

    A product of weights costs 2 operations per weight and token forward and 4 backward: 6 in all.
    Per layer, with h heads of d_k and d_v, the projections of an attention hold 2 d h (d_k + d_v)
    weights, half of them for the queries and the output, half for keys and values; attention itself
    costs h (d_k + d_v) multiplications for each pair of places, half as many pairs where it is
    causal. Embedding, softmax, norms and what checkpointing computes again do not count; neither
    does padding.

    Args:
        config: of the model.
        source_lengths: `(B,)` int64 real tokens.
        target_lengths: `(B,)` likewise.
    """
    source, target = int(source_lengths.sum()), int(target_lengths.sum())
    d_model, heads = config.d_model, config.encoder_attention_heads
    width = heads * sum(config.head_widths(heads))  # h (d_k + d_v)
    encoder = source * (2 * d_model * width + 2 * d_model * config.encoder_ffn_dim)
    encoder += width * int((source_lengths**2).sum())
    heads = config.decoder_attention_heads
    width = heads * sum(config.head_widths(heads))
    # its own attention and one side of that to the source; the other side reads the source
    decoder = target * (3 * d_model * width + 2 * d_model * config.decoder_ffn_dim)
    decoder += source * d_model * width
    decoder += width * int((target_lengths**2).sum() // 2 + (source_lengths * target_lengths).sum())
    output = target * d_model * config.target_vocab_size
    return 6 * (config.encoder_layers * encoder + config.decoder_layers * decoder + output)


def micro_batch_work(config: VanillaConfig, batch: dict[str, Tensor]) -> Tensor:
    """What a micro-batch holds and costs.

    Args:
        config: of the model.
        batch: `attention_mask` `(B, S)`, `labels` `(B, T)`.

    Returns:
        `(4,)` int64: real target tokens, real tokens of both sides, places of both sides, and
        thousands of floating-point operations.
    """
    sources, targets = batch["attention_mask"].sum(1), (batch["labels"] >= 0).sum(1)
    real = int(targets.sum())
    return torch.tensor(
        [
            real,
            int(sources.sum()) + real,
            batch["attention_mask"].numel() + batch["labels"].numel(),
            training_flops(config, sources, targets) // 1000,
        ]
    )


class RunLog:
    """Bar, `log.jsonl` and trackers of a run; all three speak on the main process only.

    Args:
        accelerator: the processes and their trackers.
        recipe: named to the trackers, and how long the run is.
        progress: where it starts; what the log holds of later steps is dropped.
    """

    def __init__(self, accelerator: Accelerator, recipe: Recipe, progress: Progress) -> None:
        self.accelerator = accelerator
        self.path = Path(recipe.train.output_dir) / LOG_FILE
        self.work = torch.zeros(4, dtype=torch.int64)
        self.peak = peak_flops(accelerator)
        if accelerator.is_main_process:
            drop_later_entries(self.path, progress.step)
        if accelerator.log_with:
            told = {**vars(recipe.train), "model": str(recipe.model)}
            accelerator.init_trackers(
                "trackers",
                config={n: v for n, v in told.items() if isinstance(v, str | int | float | bool)},
                # what a killed run had told after its last checkpoint is told again
                init_kwargs={"tensorboard": {"purge_step": progress.step + 1}},
            )
        self.bar = tqdm(
            total=recipe.train.max_steps,
            initial=progress.step,
            disable=not accelerator.is_main_process,
            unit="step",
        )
        self._since = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here goes to validating or saving, and counts for no line's speed."""
        begin = time.monotonic()
        yield
        self._since += time.monotonic() - begin

    def count(self, work: Tensor) -> None:
        """Add a `micro_batch_work` of this process."""
        self.work += work

    def train_line(self, step: int, progress: Progress, **measured: float) -> dict[str, float]:
        """Speed since the last line beside what is `measured`. Call it on every process.

        Returns:
            What was written: `tokens_per_second` (target tokens), `padding_share` of the places,
            `mfu` (share of the device's highest speed, where that is known).
        """
        seconds = max(time.monotonic() - self._since, 1e-9)
        work = self.accelerator.reduce(self.work.to(self.accelerator.device)).tolist()
        target_tokens, real, places, kiloflops = work
        entry = {
            **measured,
            "target_tokens": progress.target_tokens,
            "seconds": round(progress.seconds, 1),
            "tokens_per_second": round(target_tokens / seconds, 1),
            "padding_share": round(1 - real / places, 4),
        }
        if self.peak:
            speed = 1000 * kiloflops / seconds / self.accelerator.num_processes
            entry["mfu"] = round(speed / self.peak, 4)
        self.write(step=step, **entry)
        self.bar.set_postfix_str(bar_text(entry), refresh=False)
        self.work.zero_()
        self._since = time.monotonic()
        return entry

    def write(self, *, step: int, **entry: Any) -> None:
        """One line of the log, and the same to the trackers."""
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **entry}) + "\n")
        if self.accelerator.log_with:
            self.accelerator.log(entry, step=step)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.accelerator.is_main_process:
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """End the bar where it stands."""
        self.bar.close()


def bar_text(entry: dict[str, float]) -> str:
    """The few figures of a log line that fit behind the bar."""
    forms = (
        ("loss", "loss {:.3f}"),
        ("train_perplexity", "ppl {:.2f}"),
        ("learning_rate", "lr {:.2e}"),
        ("tokens_per_second", "{:,.0f} tok/s"),
        ("padding_share", "pad {:.1%}"),
        ("mfu", "mfu {:.1%}"),
    )
    return ", ".join(form.format(entry[name]) for name, form in forms if name in entry)


def perplexity(nll: float) -> float:
    """The exponential of nats per token, held to what a float can hold."""
    return math.exp(min(nll, 700.0))


def drop_later_entries(path: Path, step: int) -> None:
    """Leave in the log what was told up to `step`, so that a resumed run tells nothing twice."""
    if path.is_file():
        kept = [
            e
            for e in read_json_lines(path)
            if e["step"] <= step and not e.get("averaged_checkpoints")
        ]
        text = "".join(json.dumps(entry) + "\n" for entry in kept)
        write_files(path.parent, lambda new: (new / path.name).write_text(text, encoding="utf-8"))


def run_summary(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    """A run's figures from the lines of its log: names and values, for the model card."""
    trained = [entry for entry in entries if "loss" in entry]
    validated = [entry for entry in entries if "validation_nll" in entry]
    steps = [entry for entry in validated if not entry.get("averaged_checkpoints")]
    means = [entry for entry in validated if entry.get("averaged_checkpoints")]
    summary = {}
    if trained:
        last = trained[-1]
        summary["training loss at the end (smoothed targets)"] = f"{last['loss']:.4f}"
        if "train_perplexity" in last:
            summary["training perplexity at the end (plain)"] = f"{last['train_perplexity']:.2f}"
        for name, text, form in (
            ("tokens_per_second", "target tokens per second, median", "{:,.0f}"),
            ("padding_share", "padding, share of all places, median", "{:.1%}"),
            ("mfu", "model FLOPs utilization, median", "{:.1%}"),
        ):
            values = [entry[name] for entry in trained if name in entry]
            if values:
                summary[text] = form.format(median(values))
    if steps:
        best = min(steps, key=lambda entry: entry["validation_nll"])
        told = f"{best['validation_nll']:.4f} (step {best['step']:,})"
        summary["best validation NLL of one checkpoint"] = told
    if means:
        mean = means[-1]
        told = f"{mean['validation_nll']:.4f}, perplexity {perplexity(mean['validation_nll']):.2f}"
        count = mean["averaged_checkpoints"]
        summary[f"validation NLL of the mean of {count} checkpoints"] = told
    return summary
