"""Prepare a run: its folder, its task, its model and optimizer on the device."""

import json
import logging
import math
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list, gather_object, set_seed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from hf_vanilla.cpus import keep_freed_memory
from hf_vanilla.families import load_part
from hf_vanilla.files import PARTIAL, write_files
from hf_vanilla.models.stacks_vanilla import VanillaTextPreTrainedModel
from hf_vanilla.options import noted
from hf_vanilla.plots.curves import RECIPE_FILE

from .checkpointing import checkpoint_state, remove_leftovers, usable_checkpoint
from .optimization import make_optimizer, make_schedule
from .options import TrainRecipe
from .processes import TRACKERS, make_accelerator, use_faster_products
from .recipe import Recipe
from .task import Task, weights_fingerprint

if sys.platform != "win32":  # there folders are not locked
    import fcntl

logger = logging.getLogger(__name__)

# what is written before the first step: by `_write_settings`, which writes processors too, and by
# trackers
SETTINGS_FILES = {
    *(RECIPE_FILE, CONFIG_NAME, GENERATION_CONFIG_NAME, "image_fingerprints.npy", TRACKERS),
    *("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"),
}


@dataclass(frozen=True)
class PreparedRun:
    """Everything a run needs before its first step.

    Attributes:
        recipe: data, model, training and decoding.
        accelerator: the processes.
        task: data, loss and validation.
        order: rows of each micro-batch, see `Task.order`.
        per_step: micro-batches of one step, over all processes.
        facts: what a resumed run must find unchanged.
        checkpoint: from which it resumes; None for a new run.
        model: the model without wrappers.
        parallel: the same, wrapped for parallelism, compiling and mixed precision.
        optimizer: over the trained weights.
        schedule: sets the optimizer's learning rate.
    """

    recipe: Recipe
    accelerator: Accelerator
    task: Task
    order: Any
    per_step: int
    facts: dict[str, Any]
    checkpoint: Path | None
    model: PreTrainedModel
    parallel: torch.nn.Module
    optimizer: Optimizer
    schedule: LRScheduler

    @property
    def options(self) -> TrainRecipe:
        """The options that every task has."""
        return self.recipe.train

    @property
    def output_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.recipe.train.output_dir)

    @property
    def captures(self) -> bool:
        """Whether each shape of a micro-batch becomes a CUDA graph: one GPU, and few shapes."""
        return (
            self.accelerator.device.type == "cuda"
            and self.accelerator.distributed_type == DistributedType.NO
            and self.accelerator.mixed_precision != "fp16"  # which reads whether gradients overflow
            and self.task.has_few_shapes
            and not self.options.gradient_checkpointing  # which reads the state of the generator
        )

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes."""
        return self.accelerator.is_main_process


def prepare_run(recipe: Recipe) -> PreparedRun:
    """Read and learn what the run needs, the main process first; make model and optimizer.

    Raises:
        ValueError: the recipe does not fit the data or an earlier run in the folder.
        OSError: data cannot be read, or the folder cannot be written.
        ImportError: something that the recipe names is not installed.
    """
    options = recipe.train
    accelerator = make_accelerator(options)
    output_dir = Path(options.output_dir)
    set_seed(options.seed)
    with accelerator.main_process_first():
        check_folder(recipe, output_dir, is_main=accelerator.is_main_process)
        task: Task = load_part(recipe.entry.prepare)(recipe)
        for name in () if task.has_validation else ("patience", "average_best"):
            if value := getattr(options, name):
                raise ValueError(f"{name}={value} needs a validation set, and the data has none")
        set_seed(options.seed)
        model = task.model().float()  # whatever it was saved in: small steps need 24 bits
        facts = run_facts(task, model, has_initial=options.initial_model is not None)
        if accelerator.is_main_process:
            remove_leftovers(output_dir)
        checkpoint = usable_checkpoint(output_dir)
        if checkpoint is not None:
            check_facts(checkpoint, facts, model.config)
        if accelerator.is_main_process:  # after the checks, which leave an unusable folder as it is
            _write_settings(recipe, task, model, output_dir)
    check_shared(accelerator, output_dir, checkpoint)
    per_step = math.ceil(task.micro_batches / accelerator.num_processes) * accelerator.num_processes
    order = task.order(per_step)
    if accelerator.is_main_process:
        _log_sizes(recipe, model, task.micro_batches, accelerator.num_processes)
    if accelerator.device.type == "cpu":  # only now: the memory of the preparation is freed
        keep_freed_memory()
        use_faster_products(model)
    parts = _on_device(accelerator, model, options)
    return PreparedRun(recipe, accelerator, task, order, per_step, facts, checkpoint, *parts)


def _write_settings(recipe: Recipe, task: Task, model: PreTrainedModel, output_dir: Path) -> None:
    """Write recipe, config and processor; the recipe first, since it marks the folder as a run."""
    output_dir.mkdir(parents=True, exist_ok=True)
    text = recipe.to_yaml()
    write_files(output_dir, lambda new: (new / RECIPE_FILE).write_text(text, encoding="utf-8"))
    write_files(output_dir, task.save)
    write_files(output_dir, model.config.save_pretrained)
    if model.can_generate():
        write_files(output_dir, model.generation_config.save_pretrained)


def check_shared(accelerator: Accelerator, output_dir: Path, checkpoint: Path | None) -> None:
    """Refuse processes that do not see one folder; they would resume from different checkpoints.

    Call it on every process, when the main process has written to the folder.

    Args:
        accelerator: the processes.
        output_dir: of the run.
        checkpoint: from which this process resumes, for the message.

    Raises:
        ValueError: the machines of the processes share no disk.
    """
    if accelerator.num_processes == 1:
        return
    (token,) = broadcast_object_list([f"{uuid.uuid4().hex}{PARTIAL}"])
    if accelerator.is_main_process:
        (output_dir / token).touch()
    accelerator.wait_for_everyone()
    name = "the first step" if checkpoint is None else checkpoint.name
    seen = gather_object([((output_dir / token).exists(), name)])
    if accelerator.is_main_process:
        (output_dir / token).unlink()
    for process, (is_seen, start) in enumerate(seen):
        if not is_seen:
            raise ValueError(
                f"process {process} does not see what process 0 writes to {output_dir}, and would "
                f"start from {start}, process 0 from {seen[0][1]}: choose an output_dir on a disk "
                "that all machines share"
            )


def _log_sizes(recipe: Recipe, model: PreTrainedModel, wanted: int, processes: int) -> None:
    """Say how much there is to compute, before it begins.

    Args:
        recipe: of the run.
        model: of the run.
        wanted: micro-batches of a step, if the processes can share them evenly.
        processes: of the run.
    """
    warmup_steps, max_steps = recipe.train.warmup_steps, recipe.train.max_steps
    sizes = {name: n for name, n in vars(recipe.data).items() if name.endswith("_per_step")}
    shown = ", ".join(f"{name}={size:,}" for name, size in sizes.items())
    logger.info(f"{model.num_parameters():,} parameters; {max_steps:,} steps, {shown}")
    of_process = math.ceil(wanted / processes)
    parts = (
        f"{size // (of_process * processes):,} {name.removesuffix('_per_step')}"
        for name, size in sizes.items()
    )
    rounded = f", since {wanted} cannot be shared evenly" if wanted % processes else ""
    logger.info(
        "each step: %d process(es) x %d micro-batch(es) of up to %s%s",
        *(processes, of_process, ", ".join(parts), rounded),
    )
    if warmup_steps >= max_steps:
        logger.warning(
            "warmup_steps=%d is not below max_steps=%d: the learning rate never reaches its peak",
            *(warmup_steps, max_steps),
        )


def _on_device(
    accelerator: Accelerator, model: PreTrainedModel, options: TrainRecipe
) -> tuple[PreTrainedModel, torch.nn.Module, Optimizer, LRScheduler]:
    """The model without wrappers, wrapped for training, its optimizer and schedule."""
    if options.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            name = type(model).__name__
            raise ValueError(f"gradient_checkpointing=True: not possible for {name}: leave it out")
        # the older name of the two is the only one before transformers 5.21
        new = getattr(model, "activation_checkpointing_enable", None)
        (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
    optimizer = make_optimizer(model, options)
    # not prepared by accelerate, which would step the schedule once per process
    schedule = make_schedule(optimizer, options)
    parallel, optimizer = accelerator.prepare(model, optimizer)
    # accelerate's wrapper would copy the logits of every forward pass to float32
    model = accelerator.unwrap_model(parallel, keep_fp32_wrapper=False)
    if options.compile:
        # each class of layers once, and the loss, for batches of any size: to compile the whole
        # model would take a multiple of the time for the same operators; torch compiles one code
        # for eight cases, and all classes share that of transformers' wrapper
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.compile(dynamic=True)
        if isinstance(model, VanillaTextPreTrainedModel):
            model.training_loss = torch.compile(model.training_loss, dynamic=True)
        if accelerator.is_main_process:
            logger.info("layers and loss are compiled in the first steps, which take longer")
    return model, parallel, optimizer, schedule


# --- one folder, one run -------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; of several processes of one run, the first holds it.

    The lock is a file beside the folder. The operating system releases it when the process ends,
    however it ends, so a lock file that a killed process left does not matter.

    Raises:
        ValueError: another process holds it; the message names that process.
    """
    if sys.platform == "win32" or os.environ.get("RANK", "0") != "0":
        yield
        return
    folder = folder.resolve()
    path = folder.with_name(f"{folder.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ValueError(
                f"{folder} is in use by {holder}: wait until it ends, or choose another output_dir"
            ) from None
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # its holder removed the file meanwhile
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def check_folder(recipe: Recipe, output_dir: Path, *, is_main: bool) -> None:
    """Refuse to mix two runs in one folder.

    A run of another recipe that ended before its first step left nothing but settings. They are
    removed: its tokenizer, for instance, would be taken for one of this run.

    Args:
        recipe: of this run.
        output_dir: its folder.
        is_main: whether this is the process that writes.

    Raises:
        ValueError: the folder holds a run of another recipe, or something that is no run; or it is
            a file.
    """
    if output_dir.is_file():
        raise ValueError(f"output_dir={output_dir} is a file: choose another folder")
    if (output_dir / RECIPE_FILE).is_file():
        free = noted(recipe.train, "may_change") | noted(recipe.data, "may_change") | {"decoding"}
        changes = recipe.changes_since(output_dir, free=free)
        found = {p.name for p in output_dir.iterdir() if p.suffix != PARTIAL}
        if changes and CONFIG_NAME in found and found <= SETTINGS_FILES:
            # the recipe last: without it, the folder would hold no run
            for name in sorted(found, key=lambda name: name == RECIPE_FILE) if is_main else ():
                path = output_dir / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif changes:
            raise ValueError(
                f"{output_dir} holds a run of another recipe, which differs in {changes}: choose "
                "another output_dir, or delete the folder to start anew"
            )
    elif output_dir.is_dir() and [p for p in output_dir.iterdir() if p.suffix != PARTIAL]:
        raise ValueError(f"{output_dir} is not empty and holds no run: choose another output_dir")


def run_facts(task: Task, model: PreTrainedModel, *, has_initial: bool) -> dict[str, Any]:
    """What a resumed run must find unchanged: the task's facts, config and initial weights."""
    facts = {**task.facts(), "config": config_facts(model.config)}
    if has_initial:
        facts["initial model"] = weights_fingerprint(model)
    return json.loads(json.dumps(facts))  # in the form in which a checkpoint returns them


def config_facts(config: Any) -> dict[str, Any]:
    """The fields of a config that shape the model."""
    passing = {"transformers_version", "architectures", "dtype"}
    known = type(config)().to_dict().keys() - passing
    return {name: value for name, value in config.to_dict().items() if name in known}


def check_facts(checkpoint: Path, facts: dict[str, Any], config: Any) -> None:
    """Refuse to resume a checkpoint that was made with other data, tokenizer or config.

    Args:
        checkpoint: perhaps without facts, or with fewer.
        facts: of this run.
        config: of its model.

    Raises:
        ValueError: something differs; the message names it.
    """
    before = checkpoint_state(checkpoint).get("facts", {})
    if saved := before.pop("config", {}):  # as this version of the package reads it
        known = {name: saved[name] for name in config_facts(config) if name in saved}
        read = config_facts(type(config)(**known))
        before |= json.loads(json.dumps({**saved, **read}))
    current = {**facts, **facts["config"]}
    changed = [
        f"{name} ({value}, now {current.get(name)})"
        for name, value in before.items()
        if value != current.get(name)
    ]
    if changed:
        raise ValueError(
            f"{checkpoint} was made with other {', '.join(changed)}: restore what it was made "
            "with, or choose another output_dir to start anew"
        )
