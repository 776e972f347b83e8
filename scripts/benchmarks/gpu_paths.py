"""Every code path that depends on the device, on a tiny model: does it run, is the result right?"""

import importlib.util
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from gpu_options import EOS, Cases, Facts, GpuOptions, SkippedError, require_cuda
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

VOCABULARY, ROWS, SOURCE, TARGET = 97, 13, 11, 7
# resume: words that the tiny corpus is made of
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


def code_paths(options: GpuOptions) -> Cases:
    """Each path as one case; it fails where its result differs from the plain one."""
    cases: dict[str, Callable[[GpuOptions], Facts]] = {
        "float32 as on the CPU": float32,
        "bf16 training": partial(half_precision, dtype=torch.bfloat16),
        "fp16 training": partial(half_precision, dtype=torch.float16),
        "eager attention": partial(attention, kind="eager"),
        "flash attention": partial(attention, kind="flash_attention_2"),
        "flex attention": partial(attention, kind="flex_attention"),
        "compiled model": compiled,
        "DistributedDataParallel, one process": distributed,
        "resumed training": resumed,
        "beam search as on the CPU": beam_search,
    }
    for name, case in cases.items():
        yield name, partial(case, options)


def tiny_model(device: str = "cpu") -> VanillaForConditionalGeneration:
    """Two layers with heads of width 16, the least that flex attention takes."""
    torch.manual_seed(0)
    config = VanillaConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    return VanillaForConditionalGeneration(config).eval().to(device)


def tiny_batch(device: str) -> dict[str, Tensor]:
    """Source ids with padding, their mask, and labels."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (ROWS, SOURCE), generator=draw)
    mask = (torch.arange(SOURCE) < torch.arange(ROWS)[:, None] % SOURCE + 1).long()
    labels = torch.randint(3, VOCABULARY, (ROWS, TARGET), generator=draw)
    batch = {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}
    return {name: value.to(device) for name, value in batch.items()}


def loss_and_gradient(
    model: nn.Module, device: str, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Loss and gradients of all weights, `(W,)`, in float64 on the CPU."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        loss = model(**tiny_batch(device)).loss
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return loss.detach().double().cpu(), torch.cat(gradients).double().cpu()


def compare(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], *, tolerance: float
) -> Facts:
    """Relative differences of loss and gradient; too large ones are an error."""
    differences = [float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)]
    facts = dict(zip(("loss_difference", "gradient_difference"), differences, strict=True))
    if not max(differences) <= tolerance:  # NaN is no success
        raise ValueError(f"{facts}, but at most {tolerance} is expected")
    return facts


def float32(options: GpuOptions) -> Facts:
    """Loss and gradients as on the CPU."""
    expected = loss_and_gradient(tiny_model(), "cpu")
    found = loss_and_gradient(tiny_model(options.device), options.device)
    return compare(found, expected, tolerance=1e-4)


def half_precision(options: GpuOptions, *, dtype: torch.dtype) -> Facts:
    """Autocast, within its mantissa of float32."""
    model = tiny_model(options.device)
    expected = loss_and_gradient(model, options.device)
    return compare(loss_and_gradient(model, options.device, dtype), expected, tolerance=0.1)


def attention(options: GpuOptions, *, kind: str) -> Facts:
    """Another implementation of attention beside sdpa, in bf16."""
    if kind != "eager":
        require_cuda(options)
    if kind == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise SkippedError("flash_attn is not installed")
    model = tiny_model(options.device)
    expected = loss_and_gradient(model, options.device, torch.bfloat16)
    model.set_attn_implementation(kind)
    return compare(
        loss_and_gradient(model, options.device, torch.bfloat16), expected, tolerance=0.05
    )


def compiled(options: GpuOptions) -> Facts:
    """`torch.compile` for any size; the package's own tests do the same on a CPU."""
    require_cuda(options)
    model = tiny_model(options.device)
    expected = loss_and_gradient(model, options.device)
    program: nn.Module = torch.compile(model, dynamic=True)
    return compare(loss_and_gradient(program, options.device), expected, tolerance=1e-4)


def distributed(options: GpuOptions) -> Facts:
    """The gradients of DistributedDataParallel with one process."""
    model = tiny_model(options.device)
    expected = loss_and_gradient(model, options.device)
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if options.is_cuda else "gloo",
            init_method=f"file://{folder}/store",
            rank=0,
            world_size=1,
        )
        try:
            wrapped = DistributedDataParallel(model)
            found = loss_and_gradient(wrapped, options.device)
            del wrapped  # before its process group
        finally:
            torch.distributed.destroy_process_group()
    return compare(found, expected, tolerance=1e-6)


def resumed(options: GpuOptions) -> Facts:
    """Four steps in one run beside two runs of two: equal weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder)
        whole = train(small_recipe(options, folder, "whole", max_steps=4))
        train(small_recipe(options, folder, "parts", max_steps=2))
        parts = train(small_recipe(options, folder, "parts", max_steps=4))
        one, other = (load_file(each / "model.safetensors") for each in (whole, parts))
    difference = max(float((one[key] - other[key]).abs().max()) for key in one)
    if not difference <= (1e-5 if options.is_cuda else 0.0):  # sums of a GPU have no fixed order
        raise ValueError(f"weights differ by {difference}")
    return {"weight_difference": difference}


def write_corpus(folder: Path) -> None:
    """Pairs of two words, in two files."""
    pairs = [(f"{a} {b}", f"{WORDS[a]} {WORDS[b]}") for a in WORDS for b in WORDS]
    for side, name in enumerate(("source.txt", "target.txt")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (folder / name).write_text(text, encoding="utf-8")


def small_recipe(options: GpuOptions, folder: Path, name: str, *, max_steps: int) -> Recipe:
    """A training of milliseconds."""
    if not options.is_cuda:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    given = {
        "output_dir": folder / name,
        "train_source": folder / "source.txt",
        "train_target": folder / "target.txt",
        "source_language": "en",
        "target_language": "de",
        "max_length": 16,
        "max_steps": max_steps,
        "tokens_per_step": 60,
        "tokens_per_batch": 30,
        "save_steps": 2,
        "average_checkpoints": 1,
        "trackers": "none",
        "model.vocab_size": 280,
        "model.d_model": 16,
        "model.encoder_layers": 1,
        "model.decoder_layers": 1,
        "model.encoder_attention_heads": 2,
        "model.decoder_attention_heads": 2,
        "model.encoder_ffn_dim": 32,
        "model.decoder_ffn_dim": 32,
    }
    return read_recipe([str(word) for key, value in given.items() for word in (f"--{key}", value)])


def beam_search(options: GpuOptions) -> Facts:
    """The translations of the CPU; rounding may turn a tie of random weights."""
    found = []
    for device in ("cpu", options.device):
        batch = tiny_batch(device)
        ids = tiny_model(device).generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            num_beams=4,
            max_length=TARGET,
        )
        found.append([row[: row.index(EOS) + 1] if EOS in row else row for row in ids.tolist()])
    equal = sum(one == other for one, other in zip(*found, strict=True)) / ROWS
    if equal < 0.9:
        raise ValueError(f"{equal:.0%} of the translations are those of the CPU")
    return {"equal": equal}
