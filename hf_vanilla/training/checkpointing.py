"""Checkpoints of a run: safetensors and JSON, written aside and renamed; their mean (6.1)."""

import json
import logging
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import GenerationConfig, PreTrainedModel

from hf_vanilla.families import Measure, load_part, task_entry, validation_measures
from hf_vanilla.file_values import checked
from hf_vanilla.files import PARTIAL, finish_folder, flush_to_disk, whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.loading import load_saved, task_of_model
from hf_vanilla.options import Options, option

if TYPE_CHECKING:
    from .preparation import PreparedRun

logger = logging.getLogger(__name__)

STATE_FILE = "training_state.json"
STATE_SECTIONS = {"facts": dict, "scores": dict, "optimizer": list}
WEIGHTS_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
OLD_OPTIMIZER_FILE = "optimizer.bin"  # by accelerate, in checkpoints of earlier versions
LAST_CHECKPOINTS = 5  # which `average` takes where no number is given


def all_checkpoints(output_dir: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    steps = {f: f.name.removeprefix("checkpoint-") for f in output_dir.glob("checkpoint-*")}
    return sorted((f for f in steps if steps[f].isdecimal()), key=lambda f: int(steps[f]))


def checkpoint_state(folder: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` was given; empty for a folder without it."""
    path = folder / STATE_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def best_checkpoints(
    folders: Sequence[Path], count: int, *, measures: Mapping[str, Measure], by: str
) -> list[Path]:
    """Checkpoints of the best validations, best first; of equal ones the newer first.

    Args:
        folders: checkpoints, oldest first; those without a validation are left out.
        count: how many, if there are as many.
        measures: of the task.
        by: the measure that decides.
    """
    ranked = [
        (measures[by].rank(value), -index)
        for index, folder in enumerate(folders)
        if (value := checkpoint_state(folder).get("scores", {}).get(by)) is not None
    ]
    return [folders[-index] for _, index in sorted(ranked)[:count]]


def save_checkpoint(run: "PreparedRun", state: dict[str, Any]) -> Path:
    """Write everything needed to resume after `state["step"]`; prune older checkpoints.

    Call it on every process. The folder appears under its name only when it is complete.

    Args:
        run: its model, optimizer and scaler are saved; its options say which checkpoints remain.
        state: JSON-able progress; `step` is required.

    Raises:
        OSError: the disk is full, or refuses otherwise; older checkpoints are unchanged.
    """
    final = run.output_dir / f"checkpoint-{state['step']}"
    unfinished = final.with_name(final.name + PARTIAL)
    accelerator, options = run.accelerator, run.options
    weights = whole_weights(run.model)
    optimizer = run.optimizer.state_dict()
    tensors = {
        f"{index}.{name}": (value.full_tensor() if isinstance(value, DTensor) else value)
        for index, entry in optimizer["state"].items()
        for name, value in entry.items()
    }
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    if accelerator.is_main_process:
        shutil.rmtree(unfinished, ignore_errors=True)
        scaler = accelerator.scaler and accelerator.scaler.state_dict()
        state = {**state, "optimizer": optimizer["param_groups"], "scaler": scaler or None}
        try:
            unfinished.mkdir()  # no parents: a folder removed meanwhile is an error
            save_file(weights, unfinished / WEIGHTS_FILE, metadata={"format": "pt"})
            save_file(tensors, unfinished / OPTIMIZER_FILE)
            state["files"] = {path.name: _checksum(path) for path in unfinished.iterdir()}
            text = json.dumps(state, indent=2)
            (unfinished / STATE_FILE).write_text(text, encoding="utf-8")
            finish_folder(unfinished)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            remedy = "make room, and the same command "
            if all_checkpoints(run.output_dir):
                remedy += "resumes from the last checkpoint, which is complete"
            elif run.output_dir.is_dir():
                remedy += "starts again, since there is no checkpoint yet"
            else:
                remedy = "the output_dir was removed: put it back, and the same command resumes"
            raise OSError(f"cannot write {final}: {error}; {remedy}") from error
        _remove(final)
        unfinished.replace(final)
        flush_to_disk(run.output_dir)
        # prune: extra checkpoints that are not the newest, and old ones
        folders = all_checkpoints(run.output_dir)
        extra = {folder for folder in folders[:-1] if checkpoint_state(folder).get("is_extra")}
        newest = [folder for folder in folders if folder not in extra][-options.save_total_limit :]
        count = options.average_checkpoints if options.average_best else 1
        recipe = run.recipe
        best = best_checkpoints(folders, count, measures=recipe.measures, by=recipe.best_by)
        for old in folders:
            if old not in (*newest, *best):
                _remove(old)
    accelerator.wait_for_everyone()
    return final


def _remove(folder: Path) -> None:
    """Remove a checkpoint; an interrupted removal leaves no folder that looks like one."""
    if folder.exists():
        to_remove = folder.with_name(f"{folder.name}.old{PARTIAL}")
        shutil.rmtree(to_remove, ignore_errors=True)
        shutil.rmtree(folder.replace(to_remove))


def remove_leftovers(output_dir: Path) -> None:
    """Remove what a killed run had not finished writing or removing."""
    for leftover in output_dir.glob(f"*{PARTIAL}"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def usable_checkpoint(output_dir: Path) -> Path | None:
    """The newest checkpoint that is not damaged; None where there is no checkpoint.

    Every damaged one is renamed to `checkpoint-N.damaged`, with a warning that names the file, so
    that it is neither resumed from nor averaged. Call it on the main process first.

    Raises:
        ValueError: all checkpoints are damaged.
    """
    folders, newest = all_checkpoints(output_dir), None
    for folder in folders:
        problem = damage(folder)
        if problem is None:
            newest = folder
            continue
        aside = folder.with_name(f"{folder.name}.damaged")
        logger.warning("DAMAGED CHECKPOINT: %s; moved to %s", problem, aside.name)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    if folders and newest is None:
        raise ValueError(
            f"every checkpoint in {output_dir} is damaged: restore one from a copy, or delete the "
            "folder to start anew"
        )
    return newest


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None where nothing is.

    Sizes and checksums are compared with those that were noted when it was written. Checkpoints of
    earlier versions have none; of them only the list of files is checked.
    """
    path = folder / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        files = state.get("files") or dict.fromkeys((WEIGHTS_FILE, OLD_OPTIMIZER_FILE))
        files, step = dict(files), int(state["step"])
        for section, kind in STATE_SECTIONS.items():
            checked(state.get(section, kind()), kind, section)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{path} cannot be read ({error})"
    if folder.name != f"checkpoint-{step}":
        return f"{path} is of step {step}"
    for name, noted in files.items():
        if not (folder / name).is_file():
            return f"{folder / name} is missing"
        if noted is not None and _checksum(folder / name) != noted:
            return f"{folder / name} has changed since it was written"
    return None


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    checksum, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return [size, checksum]


def load_checkpoint(run: "PreparedRun", folder: Path) -> None:
    """Put a checkpoint's weights, optimizer state and scaler in place; nothing is unpickled.

    Raises:
        ValueError: it is of another model or optimizer, or damaged.
    """
    try:
        state = checkpoint_state(folder)
        load_weights(run.model, load_file(folder / WEIGHTS_FILE))
        if (folder / OPTIMIZER_FILE).is_file():
            entries: dict[int, dict[str, Tensor]] = {}
            for name, tensor in load_file(folder / OPTIMIZER_FILE).items():
                index, _, key = name.partition(".")
                entries.setdefault(int(index), {})[key] = tensor
            groups = [{**group, "betas": tuple(group["betas"])} for group in state["optimizer"]]
        else:
            old = torch.load(folder / OLD_OPTIMIZER_FILE, map_location="cpu", weights_only=True)
            entries, groups = old["state"], old["param_groups"]
        weights = [weight for group in run.optimizer.param_groups for weight in group["params"]]
        for index, entry in entries.items():
            entries[index] = {n: _divided(value, weights[index]) for n, value in entry.items()}
        run.optimizer.load_state_dict({"state": entries, "param_groups": groups})
        if state.get("scaler") and run.accelerator.scaler:
            run.accelerator.scaler.load_state_dict(state["scaler"])
    except Exception as error:  # files of other contents raise many different exceptions
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{folder} cannot be loaded ({reason:.200}): delete it, and the run resumes from the "
            "checkpoint before it"
        ) from None


def _divided(value: Tensor, weight: Tensor) -> Tensor:
    """A tensor divided over the processes as its weight is, where the weight is divided."""
    if isinstance(weight, DTensor) and value.shape == weight.shape:
        return distribute_tensor(value, weight.device_mesh, weight.placements)
    return value


# --- models whose weights are divided over the processes (FSDP2) ---------------------------------


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether each process holds only its part of the weights."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def whole_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """All weights and buffers of a model, whole, tied tensors once. Call it on every process."""
    weights: dict[str, Any] = model.state_dict(keep_vars=True)
    once = {id(tensor): name for name, tensor in reversed(weights.items())}
    if is_sharded(model):
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: weights[name].detach().contiguous() for name in sorted(once.values())}


def whole_model(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or a whole copy on this process's device. Call it on every process.

    Sharded weights need all processes in every forward pass, but in validation each process has its
    own number of batches.
    """
    if not is_sharded(model):
        return model
    copy = type(model)(model.config).to(model.device)
    if model.can_generate():
        copy.generation_config = model.generation_config
    load_weights(copy, whole_weights(model))
    return copy


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor]) -> None:
    """Put weights into a model whose tied tensors are stored once.

    Raises:
        ValueError: names are left over or missing; the message lists them all.
    """
    known = model.state_dict(keep_vars=True)
    left_over = sorted(weights.keys() - known.keys())
    filled = {id(known[name]) for name in weights.keys() & known.keys()}
    missing = sorted(name for name, tensor in known.items() if id(tensor) not in filled)
    if left_over or missing:
        raise ValueError(f"the weights do not fit: left over {left_over}, missing {missing}")
    divided = {name: _divided(weight, known[name]) for name, weight in weights.items()}
    model.load_state_dict(divided, strict=False)


# --- averaging (6.1) ------------------------------------------------------------------------------


def average_checkpoints(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Plain mean of the weights of several checkpoints, in float32 at least (6.1).

    Args:
        folders: checkpoints of one run, or model folders.

    Returns:
        Names and means, in the dtype of the first folder; tied tensors once, as they are stored.

    Raises:
        ValueError: there is none, one is damaged, or their tensors differ in name or shape.
        FileNotFoundError: a folder holds no `model.safetensors`.
    """
    if not folders:
        raise ValueError("no checkpoints to average")
    totals: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    first: set[tuple[str, torch.Size]] = set()
    for folder in folders:
        path = Path(folder) / WEIGHTS_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; give folders that hold {WEIGHTS_FILE}")
        try:
            weights = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}): restore it, or leave it out") from None
        shapes = {(name, weight.shape) for name, weight in weights.items()}
        first = first or shapes
        if odd := sorted({name for name, _ in shapes ^ first}):
            raise ValueError(f"{folder} is of another model than {folders[0]}: {odd} differ")
        for name, weight in weights.items():
            dtypes.setdefault(name, weight.dtype)
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
            totals[name] = totals[name] + weight if name in totals else weight
    return {name: (total / len(folders)).to(dtypes[name]) for name, total in totals.items()}


@dataclass(frozen=True, kw_only=True)
class AverageOptions(Options):
    """Make a model from the mean of a run's last or best checkpoints."""

    run: str = option(text="folder of a training run, finished or not")
    output: str = option(text="folder for the model")
    last: int | None = option(None, "how many of the newest checkpoints; default: 5", at_least=1)
    best: int | None = option(None, "how many of the best instead", at_least=1)
    best_by: str | None = option(
        None, "measure that compares checkpoints, such as nll or bleu; default: the task's first"
    )


def average_run(options: AverageOptions) -> Path:
    """A model folder from the mean of a run's newest or best checkpoints; returns the folder.

    Raises:
        ValueError: the run has too few checkpoints, or a number is not positive.
        OSError: the output exists, or the run is not one.
    """
    run = Path(options.run)
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: no such folder; give the output_dir of a training run")
    if not all_checkpoints(run):
        raise FileNotFoundError(f"{run} has no checkpoints: give the output_dir of a training run")
    with whole_folder(options.output) as folder:
        entry = task_entry(task_of_model(str(run)))
        chosen = _chosen_checkpoints(options)
        config = load_saved(load_part(entry.config), run)
        model = load_part(entry.model)(config)
        if model.can_generate():
            model.generation_config = load_saved(GenerationConfig, run)
        load_weights(model, average_checkpoints(chosen))
        model.save_pretrained(folder)
        if entry.processor:
            load_saved(load_part(entry.processor), run).save_pretrained(folder)
        names = ", ".join(path.name for path in chosen)
        change = f"Mean of {names} of {run.resolve().name}, by `hf-vanilla average`."
        carry_over(str(run), folder, change=change)
    return Path(options.output)


def _chosen_checkpoints(options: AverageOptions) -> list[Path]:
    run = Path(options.run)
    whole = all_checkpoints(run)
    # one that a stopped run left between two others is not averaged, as in training
    folders = [each for each in whole if not checkpoint_state(each).get("is_extra")] or whole
    if options.best is None:
        if options.best_by is not None:
            raise ValueError(f"best_by={options.best_by!r} needs best, the number of checkpoints")
        last, most = options.last or LAST_CHECKPOINTS, len(folders)
        if last > most:
            raise ValueError(
                f"last={last}, but {run} has {most} checkpoints: give a smaller number, or train "
                "with a larger save_total_limit"
            )
        return folders[-last:]
    if options.last is not None:
        raise ValueError(f"last={options.last} and best={options.best}: give one of them")
    measures = validation_measures(task_of_model(str(run)))
    by = options.best_by or next(iter(measures))
    if by not in measures:
        raise ValueError(f"best_by={by!r}: choose one of {', '.join(measures)}")
    measured = best_checkpoints(folders, len(folders), measures=measures, by=by)
    if options.best > len(measured):
        raise ValueError(
            f"best={options.best}: {run} has {len(measured)} checkpoints whose {by} was measured; "
            "a run measures where save_steps is a multiple of eval_steps"
        )
    return measured[: options.best]
