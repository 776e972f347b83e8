"""Checkpoints of a run: safetensors and JSON, written to a temporary folder and renamed."""

import json
import logging
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from hf_vanilla.families import Measure
from hf_vanilla.file_values import checked
from hf_vanilla.files import PARTIAL, finish_folder, flush_to_disk

logger = logging.getLogger(__name__)

STATE_FILE = "training_state.json"
STATE_SECTIONS = {"facts": dict, "scores": dict, "optimizer": list}
WEIGHTS_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
OLD_OPTIMIZER_FILE = "optimizer.bin"  # by accelerate, in checkpoints of earlier versions


def checkpoint_folder(output_dir: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` optimizer steps."""
    return output_dir / f"checkpoint-{step}"


def all_checkpoints(output_dir: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    found = [
        (int(folder.name.removeprefix("checkpoint-")), folder)
        for folder in output_dir.glob("checkpoint-*")
        if folder.name.removeprefix("checkpoint-").isdecimal()
    ]
    return [folder for _, folder in sorted(found)]


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


@dataclass(frozen=True)
class TrainingParts:
    """What a checkpoint saves beside the state: model, optimizer, and the scaler of fp16.

    Attributes:
        accelerator: the processes.
        model: without wrappers.
        optimizer: over its trained weights.
    """

    accelerator: Accelerator
    model: torch.nn.Module
    optimizer: Optimizer


@dataclass(frozen=True)
class Keeping:
    """Which checkpoints pruning keeps.

    Attributes:
        newest: how many of the newest.
        best: how many of the best besides.
        measures: of the task; needed where `best` is positive.
        by: the measure that compares them.
    """

    newest: int
    best: int = 0
    measures: Mapping[str, Measure] = field(default_factory=dict)
    by: str = ""


def save_checkpoint(
    parts: TrainingParts, output_dir: Path, state: dict[str, Any], *, keep: Keeping
) -> Path:
    """Write everything needed to resume after `state["step"]`; prune older checkpoints.

    Call it on every process. The folder appears under its name only when it is complete.

    Args:
        parts: what is saved.
        output_dir: of the run.
        state: JSON-able progress; `step` is required.
        keep: which checkpoints remain.

    Raises:
        OSError: the disk is full, or refuses otherwise; older checkpoints are unchanged.
    """
    final = checkpoint_folder(output_dir, state["step"])
    unfinished = final.with_name(final.name + PARTIAL)
    accelerator = parts.accelerator
    weights = whole_weights(parts.model)
    optimizer = parts.optimizer.state_dict()
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
            unfinished.mkdir(parents=True)
            save_file(weights, unfinished / WEIGHTS_FILE, metadata={"format": "pt"})
            save_file(tensors, unfinished / OPTIMIZER_FILE)
            state["files"] = {path.name: _checksum(path) for path in unfinished.iterdir()}
            text = json.dumps(state, indent=2)
            (unfinished / STATE_FILE).write_text(text, encoding="utf-8")
            finish_folder(unfinished)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OSError(
                f"cannot write {final}: {error}; make room, and the same command resumes from the "
                "last checkpoint, which is complete"
            ) from error
        _remove(final)
        unfinished.replace(final)
        flush_to_disk(output_dir)
        # prune: extra checkpoints that are not the newest, and old ones
        folders = all_checkpoints(output_dir)
        extra = {folder for folder in folders[:-1] if checkpoint_state(folder).get("is_extra")}
        kept = set([folder for folder in folders if folder not in extra][-keep.newest :])
        if keep.best:
            kept |= {*best_checkpoints(folders, keep.best, measures=keep.measures, by=keep.by)}
        for old in folders:
            if old not in kept:
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
        shutil.rmtree(leftover, ignore_errors=True)


def usable_checkpoint(output_dir: Path) -> Path | None:
    """The newest checkpoint that is not damaged; None where there is no checkpoint.

    A damaged one is renamed to `checkpoint-N.damaged`, with a warning that names the file, so that
    it is neither resumed from nor averaged. Call it on the main process first.

    Raises:
        ValueError: all checkpoints are damaged.
    """
    folders = all_checkpoints(output_dir)
    for folder in reversed(folders):
        problem = damage(folder)
        if problem is None:
            return folder
        aside = folder.with_name(f"{folder.name}.damaged")
        logger.warning("DAMAGED CHECKPOINT: %s; moved to %s", problem, aside.name)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    if folders:
        raise ValueError(
            f"every checkpoint in {output_dir} is damaged: restore one from a copy, or delete the "
            "folder to start anew"
        )
    return None


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


def load_checkpoint(parts: TrainingParts, folder: Path) -> None:
    """Put a checkpoint's weights, optimizer state and scaler in place; nothing is unpickled.

    Raises:
        ValueError: it is of another model or optimizer, or damaged.
    """
    try:
        _load_parts(parts, folder)
    except Exception as error:  # files of other contents raise many different exceptions
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{folder} cannot be loaded ({reason:.200}): delete it, and the run resumes from the "
            "checkpoint before it"
        ) from None


def _load_parts(parts: TrainingParts, folder: Path) -> None:
    state = checkpoint_state(folder)
    load_weights(parts.model, load_file(folder / WEIGHTS_FILE))
    if (folder / OPTIMIZER_FILE).is_file():
        entries: dict[int, dict[str, Tensor]] = {}
        for name, tensor in load_file(folder / OPTIMIZER_FILE).items():
            index, _, key = name.partition(".")
            entries.setdefault(int(index), {})[key] = tensor
        groups = [{**group, "betas": tuple(group["betas"])} for group in state["optimizer"]]
    else:
        old = torch.load(folder / OLD_OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        entries, groups = old["state"], old["param_groups"]
    weights = [weight for group in parts.optimizer.param_groups for weight in group["params"]]
    for index, entry in entries.items():
        entries[index] = {name: _divided(value, weights[index]) for name, value in entry.items()}
    parts.optimizer.load_state_dict({"state": entries, "param_groups": groups})
    if state.get("scaler") and parts.accelerator.scaler:
        parts.accelerator.scaler.load_state_dict(state["scaler"])


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
    named = model.state_dict(keep_vars=True)
    once = {id(tensor): name for name, tensor in reversed(named.items())}
    full: dict[str, Any] = named
    if is_sharded(model):
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: full[name].detach().contiguous() for name in sorted(once.values())}


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
