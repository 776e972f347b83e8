"""Training on a GPU: speed of several ways of a step, and the published recipe."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_options import (
    Cases,
    Facts,
    GpuOptions,
    SkippedError,
    model_of,
    require_cuda,
    sentence_lengths,
    synchronize,
)
from torch import Tensor, nn
from train_engines import peak_megabytes

from hf_vanilla.data.batching import TokenBatchSampler
from hf_vanilla.models.loss_vanilla import IGNORED_LABEL, label_smoothed_loss
from hf_vanilla.text.evaluation import EvaluateOptions, evaluate_files
from hf_vanilla.text.work import training_flops
from hf_vanilla.training.optimization import paper_adam
from hf_vanilla.training.processes import PEAK_FLOPS
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

STEP_TOKENS, PAPER_STEPS = 25_000, 100_000  # of either side (5.1, 5.2)
LONGEST = 128
# lengths that sentences are padded to, so that there are 12 shapes
ROUNDED = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
RECIPE, PUBLISHED = "multi30k_tiny_lowercased", 41.02
TINY_RECIPE = {
    "max_steps": 2,
    "eval_steps": 2,
    "save_steps": 2,
    "patience": 0,
    "tokens_per_step": 256,
    "tokens_per_batch": 128,
    "model.vocab_size": 290,
    "model.d_model": 16,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.encoder_ffn_dim": 32,
    "model.decoder_ffn_dim": 32,
}


@dataclass(frozen=True)
class Way:
    """One way to compute a step.

    Attributes:
        mode: of `torch.compile`; None: not compiled.
        is_static: lengths are rounded, so that CUDA graphs can be replayed.
        is_fused: the logits are computed in blocks together with their loss.
    """

    mode: str | None = None
    is_static: bool = False
    is_fused: bool = False


WAYS = {
    "eager": Way(),
    "eager, fused linear and loss": Way(is_fused=True),
    "compiled": Way(mode="default"),
    "compiled, fused linear and loss": Way(mode="default", is_fused=True),
    "static shapes, compiled": Way(mode="default", is_static=True),
    "static shapes, CUDA graphs": Way(mode="reduce-overhead", is_static=True),
}


def training(options: GpuOptions) -> Cases:
    """Each way at base size, then the first and the compiled one of big."""
    for name, way in WAYS.items():
        yield f"base, {name}", partial(speed, options, "base", way)
    for name in ("eager", "compiled"):
        yield f"big, {name}", partial(speed, options, "big", WAYS[name])


def speed(options: GpuOptions, size: str, way: Way) -> Facts:
    """Tokens per second, MFU, peak memory, and hours of the paper's 100,000 steps."""
    if way.mode:
        require_cuda(options)
    gc.collect()
    model = model_of(options, size).train().to(options.device)
    optimizer = paper_adam(model.parameters(), learning_rate=1e-4)
    loss_of = fused_loss if way.is_fused else plain_loss
    compute: Callable = partial(loss_of, model)
    if way.mode:
        compute = torch.compile(compute, dynamic=True, mode=way.mode)
    if options.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    warmup, steps = (1, 2) if options.tiny else (3 * len(ROUNDED) if way.is_static else 10, 30)
    batches = make_batches(options, model.config.vocab_size, way, warmup + steps)
    seconds, tokens, flops, losses = [], [], [], []
    for number, (batch, lengths) in enumerate(batches):
        synchronize(options)
        started = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16):
            loss = compute(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(options)
        if number >= warmup:
            seconds.append(time.perf_counter() - started)
            tokens.append(int(lengths[1].sum()))
            flops.append(training_flops(model.config, *lengths))
        losses.append(loss.item())
    if not np.isfinite(losses).all():
        raise ValueError(f"the loss is not finite: {losses}")
    return figures(options, sum(tokens) / sum(seconds), sum(flops) / sum(seconds))


def figures(options: GpuOptions, tokens_per_second: float, flops_per_second: float) -> Facts:
    """What a way's speed means."""
    facts: Facts = {
        "tokens_per_second": round(tokens_per_second),
        "hours_of_the_paper": PAPER_STEPS * STEP_TOKENS / tokens_per_second / 3600,
    }
    if not options.is_cuda:
        return {**facts, "peak_mib": round(peak_megabytes())}
    name = torch.cuda.get_device_name()
    peak = next((value for kind, value in PEAK_FLOPS.items() if kind in name), None)
    facts["mfu"] = flops_per_second / peak if peak else None
    return {**facts, "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20)}


def plain_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """As training computes it."""
    return model(**batch).loss


def fused_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The same loss without all logits at once."""
    given = {name: value for name, value in batch.items() if name != "labels"}
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    states = model.model(**given, decoder_input_ids=ids, use_cache=False).last_hidden_state
    arguments = model.lm_head.weight, batch["labels"].flatten(), model.config.label_smoothing
    return FusedLinearLoss.apply(states.flatten(0, 1), *arguments)


class FusedLinearLoss(torch.autograd.Function):
    """Output layer and smoothed loss, block by block of tokens, gradients in the forward pass.

    An experiment: it saves the memory of the logits and computes nothing twice.
    """

    BLOCK = 4096  # tokens

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        """Nats per real token; `states` is `(N, D)`, `weight` `(V, D)`, `labels` `(N,)`."""
        count = (labels != IGNORED_LABEL).sum().clamp(min=1)
        total, of_weight, of_states = 0.0, torch.zeros_like(weight), []
        for rows, ids in zip(
            states.split(FusedLinearLoss.BLOCK), labels.split(FusedLinearLoss.BLOCK), strict=True
        ):
            with torch.enable_grad():
                inputs = rows.detach().requires_grad_(), weight.detach().requires_grad_()
                logits = nn.functional.linear(*inputs)
                loss = label_smoothed_loss(
                    logits[None], ids[None], smoothing=smoothing, num_items_in_batch=count
                )
                found = torch.autograd.grad(loss, inputs)
            of_states.append(found[0])
            of_weight += found[1]
            total = total + loss.detach()
        ctx.save_for_backward(torch.cat(of_states), of_weight)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the forward pass."""
        of_states, of_weight = ctx.saved_tensors
        return of_states * gradient, of_weight * gradient, None, None


def make_batches(
    options: GpuOptions, vocabulary: int, way: Way, count: int
) -> Iterator[tuple[dict[str, Tensor], tuple[Tensor, Tensor]]]:
    """Batches of random ids on the device, each with its `(B,)` source and target lengths."""
    pairs, budget = (300, 200) if options.tiny else (100_000, STEP_TOKENS)
    longest = 24 if options.tiny else LONGEST
    source, target = sentence_lengths(pairs, longest)
    if way.is_static:
        groups = rounded_groups(source, target, budget)
    else:
        sampler = TokenBatchSampler(source, target, tokens_per_batch=budget)
        groups = [np.asarray(rows) for rows in sampler.batches(0)]
    draw = torch.Generator().manual_seed(0)
    for number in range(count):
        rows = groups[number % len(groups)]
        lengths = torch.from_numpy(source[rows]), torch.from_numpy(target[rows])
        widths: Sequence[int] = [int(each.max()) for each in lengths]
        if way.is_static:
            widths = [rounded(max(widths))] * 2
        ids, labels = (
            torch.randint(2, vocabulary, (len(rows), width), generator=draw) for width in widths
        )
        is_real = [torch.arange(n) < each[:, None] for n, each in zip(widths, lengths, strict=True)]
        batch = {
            "input_ids": ids * is_real[0],
            "attention_mask": is_real[0].long(),
            "labels": labels.masked_fill(~is_real[1], IGNORED_LABEL),
        }
        yield {name: value.to(options.device) for name, value in batch.items()}, lengths


def rounded(length: int) -> int:
    """The next of the lengths that sentences are padded to."""
    return next(each for each in ROUNDED if each >= length)


def rounded_groups(source: np.ndarray, target: np.ndarray, budget: int) -> list[np.ndarray]:
    """Rows of batches that have one of 12 shapes, in mixed order; incomplete ones are dropped."""
    widths = np.array([rounded(n) for n in np.maximum(source, target)])
    groups = []
    for width in ROUNDED:
        rows, each = np.flatnonzero(widths == width), max(1, budget // width)
        groups += [rows[i : i + each] for i in range(0, len(rows) - each + 1, each)]
    order = np.random.default_rng(0).permutation(len(groups))
    return [groups[i] for i in order]


def recipe(options: GpuOptions) -> Cases:
    """The recipe of the published score with several seeds, then their mean."""
    scores: list[float] = []
    for seed in range(options.seeds if options.data else 0):
        yield f"seed {seed}", partial(train_and_score, options, seed, scores)
    yield "all seeds", partial(mean_score, scores)


def train_and_score(options: GpuOptions, seed: int, scores: list[float]) -> Facts:
    """BLEU of one training, added to `scores`."""
    data, output = Path(options.data or ""), Path(options.output) / f"seed-{seed}"
    sides = {"source": "en", "target": "de"}
    given: dict[str, Any] = {"recipe": RECIPE, "output_dir": output, "seed": seed}
    given |= {f"train_{side}": data / f"train.lc.norm.tok.{end}" for side, end in sides.items()}
    given |= {f"validation_{side}": data / f"val.lc.norm.tok.{end}" for side, end in sides.items()}
    given |= TINY_RECIPE if options.tiny else {}
    given |= {} if options.is_cuda else {"use_cpu": True}
    train(read_recipe([str(word) for key, value in given.items() for word in (f"--{key}", value)]))
    found = evaluate_files(
        EvaluateOptions(
            model=str(output),
            source=str(data / "test_2016_flickr.lc.norm.tok.en"),
            reference=str(data / "test_2016_flickr.lc.norm.tok.de"),
            tokenize="none",
        )
    )
    scores.append(found.bleu)
    return {"bleu": found.bleu}


def mean_score(scores: list[float]) -> Facts:
    """Mean and standard deviation over the seeds."""
    if not scores:
        raise SkippedError("no --data with the recipe's files, or no seed was scored")
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    facts = {"bleu": statistics.mean(scores), "standard_deviation": spread}
    return {**facts, "seeds": len(scores), "published": PUBLISHED}
