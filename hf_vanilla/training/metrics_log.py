"""Metrics of a run: throughput, padding, losses; on a bar, in a log, to trackers."""

import json
import logging
import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator
from tqdm import tqdm

from hf_vanilla.families import Measure
from hf_vanilla.files import read_json_lines, write_text
from hf_vanilla.plots.curves import LOG_FILE

from .preparation import PreparedRun
from .processes import TRACKERS, peak_flops
from .recipe import Recipe
from .task import Task, Validation, Work
from .train_step import StepResult, unusable_step

logger = logging.getLogger(__name__)

TIMED_STEPS = 10  # after so many, the time of the whole run is estimated
WAITING_FACTOR = 20  # wall time over processor time from which the user is warned


@dataclass
class Progress:
    """How far a run is; saved with each checkpoint.

    Attributes:
        step: optimizer steps done.
        counts: totals of the task's counts over all steps, by name.
        seconds: time of training, validation and saving.
        best: value of the best validation; None before the first.
        stale: validations since the best one.
    """

    step: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    best: float | None = None
    stale: int = 0


class MetricsLog:
    """Progress bar, `log.jsonl` and trackers of a run; only the main process writes.

    Args:
        accelerator: the processes and their trackers.
        recipe: its options go to the trackers; it knows the folder and the length of the run.
        task: names what is logged.
        progress: where the run starts; later entries of the log are dropped.
    """

    def __init__(
        self, accelerator: Accelerator, recipe: Recipe, task: Task, progress: Progress
    ) -> None:
        self.accelerator, self.task, self.measures = accelerator, task, recipe.measures
        self.path = Path(recipe.train.output_dir) / LOG_FILE
        self.peak = peak_flops(accelerator)
        if accelerator.is_main_process:
            drop_later_entries(self.path, progress.step)
        if accelerator.log_with:
            options = {**vars(recipe.train), **vars(recipe.data), "model": str(recipe.model)}
            accelerator.init_trackers(
                TRACKERS,
                config={n: v for n, v in options.items() if isinstance(v, str | int | float)},
                # a killed run reported steps after its last checkpoint, which now come again
                init_kwargs={"tensorboard": {"purge_step": progress.step + 1}},
            )
        total, is_hidden = recipe.train.max_steps, not accelerator.is_main_process
        self.bar = tqdm(total=total, initial=progress.step, disable=is_hidden, unit="step")
        self._work = Work(0, 0, 0)
        self._results: list[StepResult] = []
        self._since, self._cpu_since = time.monotonic(), time.process_time()
        self._first_step, self._timed_since = progress.step, self._since
        self._has_warned = accelerator.device.type != "cpu"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time spent in this context, for validation or saving, out of throughput."""
        begin, cpu_begin = time.monotonic(), time.process_time()
        yield
        self._since += time.monotonic() - begin
        self._timed_since += time.monotonic() - begin
        self._cpu_since += time.process_time() - cpu_begin

    def add(self, result: StepResult, work: Work) -> None:
        """Keep the result of a step until `read`: reading at each step would make a GPU wait."""
        self._results.append(result)
        self._work += work

    def read(self, run: PreparedRun, progress: Progress) -> dict[str, float]:
        """Read the results of all steps since the last reading; call it on every process.

        Args:
            run: that goes on, or ends here.
            progress: its counts grow.

        Returns:
            Loss, learning rate and logged values of the newest step.

        Raises:
            ValueError: a loss is not finite.
        """
        results, self._results = self._results, []
        newest = results[-1]
        names = [name for name in newest.values if name != "loss"]
        shares = [result.values["loss"] for result in results]
        shares += [newest.values[name] for name in names]
        # one collective and one read for all of them
        read = self.accelerator.reduce(torch.stack(shares)).tolist()
        losses = read[: len(results)]
        counts = torch.stack([result.totals for result in results]).sum(0).tolist()
        for name, number in zip(self.task.counted, counts, strict=True):
            progress.counts[name] = progress.counts.get(name, 0) + number
        for result, loss in zip(results, losses, strict=True):
            if not math.isfinite(loss):
                raise unusable_step(run, result, f"the loss is {loss}")
            self.bar.update()
        values = dict(zip(names, read[len(results) :], strict=True))
        shown = {"loss": losses[-1], "learning_rate": newest.learning_rate, **values}
        return shown | self.task.derived(values)

    def is_timed(self, step: int) -> bool:
        """Whether the time is taken after this step, so that a GPU must be read."""
        return step - self._first_step in (1, TIMED_STEPS)

    def show_expected_time(self, step: int) -> None:
        """Show how long the run will take, after its tenth step here; call it after each read."""
        if step == self._first_step + 1:  # which may have compiled the model
            self._timed_since = time.monotonic()
        left = self.bar.total - step
        if step == self._first_step + TIMED_STEPS and left and self.accelerator.is_main_process:
            seconds = left * (time.monotonic() - self._timed_since) / (TIMED_STEPS - 1)
            duration = timedelta(seconds=min(math.ceil(seconds), 10**13))  # more overflows
            rest = f"the other {left:,} steps, beside validation and saving"
            tqdm.write(f"expected: {duration} for {rest}", file=sys.stderr)

    def train_line(self, progress: Progress, values: dict[str, float]) -> dict[str, float]:
        """Write the values of a step and the throughput since the last line; on every process.

        Returns:
            What was written: `tokens_per_second` or the like (`Task.items`), `padding_share` of
            the positions, `mfu` (share of the device's peak speed, where that is known).
        """
        seconds = max(time.monotonic() - self._since, 1e-9)
        work = self._work
        # thousands: operations of many steps and processes exceed 64 bits
        parts = [work.items, work.real_positions, work.padded_positions, work.flops // 1000]
        tensor = torch.tensor(parts, device=self.accelerator.device)
        items, real, padded, kiloflops = self.accelerator.reduce(tensor).tolist()
        entry: dict[str, Any] = {
            **values,
            **progress.counts,
            "seconds": round(progress.seconds, 1),
            f"{self.task.items}_per_second": round(items / seconds, 1),
            "padding_share": round(1 - real / max(padded, 1), 4),
        }
        if self.peak and kiloflops:
            speed = 1000 * kiloflops / seconds / self.accelerator.num_processes
            entry["mfu"] = round(speed / self.peak, 4)
        self.write(step=progress.step, **entry)
        shown = bar_text(entry, self.task.items, self.task.derived(values))
        self.bar.set_postfix_str(shown, refresh=False)
        used = time.process_time() - self._cpu_since
        if not self._has_warned and seconds > WAITING_FACTOR * max(used, 1e-3):
            self._has_warned = True
            logger.warning(
                "the last steps took %.0f s, of which this process computed %.1f s: other "
                "processes use the cores, or there is a CPU quota; stop them, or set "
                "OMP_NUM_THREADS=1",
                *(seconds, used),
            )
        self._work = Work(0, 0, 0)
        self._since, self._cpu_since = time.monotonic(), time.process_time()
        return entry

    def write(self, *, step: int, samples: Sequence[Mapping[str, str]] = (), **entry: Any) -> None:
        """One line of the log, and the same to the trackers, which get no samples."""
        if self.accelerator.is_main_process:
            line = {"step": step, **entry} | ({"samples": list(samples)} if samples else {})
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.accelerator.log_with:
            self.accelerator.log(entry, step=step)

    def validation(
        self, progress: Progress, validation: Validation, name: str, *, averaged: int = 0
    ) -> None:
        """Write the values of a validation, and show them above the bar.

        Args:
            progress: its step is that of the line.
            validation: of the model `name`.
            name: "step 400" for the model in training, else what may become the finished one.
            averaged: checkpoints in its mean, 1 for a single one; 0 for the model in training.
        """
        # under the names that the measures have in the log
        names = {name: one.log_name or name for name, one in self.measures.items()}
        entry = {names.get(name, name): value for name, value in validation.values.items()}
        which = {"averaged_checkpoints": averaged} | ({"model": name} if averaged else {})
        self.write(step=progress.step, samples=validation.samples, **which, **entry)
        line = "  ".join(f"{key} {value:.3f}" for key, value in entry.items())
        if self.accelerator.is_main_process:
            tqdm.write(f"{name}: {line}", file=sys.stderr)


def bar_text(entry: Mapping[str, float], items: str, derived: Collection[str] = ()) -> str:
    """The numbers of a log line that are shown after the progress bar.

    Args:
        entry: the line.
        items: what throughput counts.
        derived: names of the task's derived numbers.
    """
    forms = (
        ("loss", "loss {:.3f}"),
        *((name, f"{name.removeprefix('train_')} {{:.2f}}") for name in derived),
        ("learning_rate", "lr {:.2e}"),
        (f"{items}_per_second", f"{{:,.0f}} {items}/s"),
        ("padding_share", "padding {:.1%}"),
        ("mfu", "mfu {:.1%}"),
    )
    return ", ".join(form.format(entry[name]) for name, form in forms if name in entry)


def drop_later_entries(path: Path, step: int) -> None:
    """Keep the log's entries up to `step`, since a resumed run writes the later ones again."""
    if path.is_file():
        before = [e for e in read_json_lines(path) if e["step"] <= step]
        kept = [json.dumps(e) + "\n" for e in before if not e.get("averaged_checkpoints")]
        write_text(path, "".join(kept))


def run_summary(
    entries: Sequence[Mapping[str, Any]], measures: Mapping[str, Measure], items: str
) -> dict[str, str]:
    """Figures of a run from the lines of its log: names and values, for the model card.

    Args:
        entries: lines of the log.
        measures: of the task.
        items: what throughput counts.
    """
    summary = {}
    trained = [entry for entry in entries if "loss" in entry]
    for name, measure in measures.items():
        if measure.better is None and trained and name in trained[-1]:
            summary[f"{measure.label} at the end"] = f"{trained[-1][name]:.{measure.precision}f}"
    for name, text, form in (
        (f"{items}_per_second", f"{items} per second, median", "{:,.0f}"),
        ("padding_share", "padding, share of all positions, median", "{:.1%}"),
        ("mfu", "model FLOPs utilization, median", "{:.1%}"),
    ):
        values = [entry[name] for entry in trained if name in entry]
        if values:
            summary[text] = form.format(median(values))
    return summary | _validation_summary(entries, measures)


def _validation_summary(
    entries: Sequence[Mapping[str, Any]], measures: Mapping[str, Measure]
) -> dict[str, str]:
    """The best validation in training and those of the finished models, by every measure."""
    summary = {}
    for name, measure in measures.items():
        key = measure.log_name or name
        found = [entry for entry in entries if key in entry and measure.better]
        single = [entry for entry in found if not entry.get("averaged_checkpoints")]
        digits = measure.precision
        if single:
            best = min(single, key=lambda entry: measure.rank(entry[key]))
            text = f"{best[key]:.{digits}f} (step {best['step']:,})"
            summary[f"best {measure.label} of one checkpoint"] = text
        for entry in reversed(found):  # the finished model comes first
            if count := entry.get("averaged_checkpoints", 0):
                mean = f"the mean of {count} checkpoints"
                of = entry["model"] if count == 1 and "model" in entry else mean
                summary[f"{measure.label} of {of}"] = f"{entry[key]:.{digits}f}"
    return summary
