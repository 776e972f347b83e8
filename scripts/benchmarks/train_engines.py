"""What the training benchmark compares: one class per library, each in a process of its own."""

import resource
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.cpus import keep_freed_memory
from hf_vanilla.training.optimization import paper_adam
from hf_vanilla.training.processes import use_faster_products

SMALL = {"d_model": 256, "encoder_layers": 3, "decoder_layers": 3}
SMALL |= {"encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
SMALL |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
BASE = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6}
BASE |= {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
BASE |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
SIZES = {"small": SMALL, "base": BASE}
LEARNING_RATE, DROPOUT, SMOOTHING = 3e-4, 0.1, 0.1
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
# operations of a profile, by what they are there for; the first match counts
GROUPS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::_linear"),
    "attention kernel": ("aten::_scaled_dot",),
    "loss": ("aten::_softmax", "aten::exp", "aten::amax", "aten::logsumexp", "BlockwiseCross"),
    "dropout": ("aten::random_", "aten::ge", "aten::bernoulli_"),
    "normalization": ("aten::native_layer_norm",),
    "optimizer": ("aten::_fused_adam", "Optimizer"),
    "copies and casts": ("aten::copy_", "aten::_to_copy", "aten::fill_", "aten::cat"),
}


class Ours:
    """`VanillaForConditionalGeneration`, trained as `scripts/train.py` does."""

    def __init__(self, sizes: dict[str, Any], vocab_size: int, dtype: torch.dtype | None) -> None:
        keep_freed_memory()
        config = VanillaConfig(vocab_size=vocab_size, dropout=DROPOUT, **SPECIAL, **sizes)
        self.model: nn.Module = VanillaForConditionalGeneration(config).train()
        use_faster_products(self.model)
        self.optimizer = paper_adam(self.model.parameters(), learning_rate=LEARNING_RATE)
        self.dtype = dtype

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Of one batch of `input_ids`, `attention_mask` and `labels`."""
        with torch.autocast("cpu", self.dtype) if self.dtype else nullcontext():
            return self.model(**batch).loss


class Marian:
    """`MarianMTModel` with torch's smoothed loss and Adam."""

    def __init__(self, sizes: dict[str, Any], vocab_size: int, dtype: torch.dtype | None) -> None:
        config = MarianConfig(
            vocab_size=vocab_size,
            dropout=DROPOUT,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=1024,
            **SPECIAL,
            **sizes,
        )
        self.model: nn.Module = MarianMTModel(config).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.dtype = dtype

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The labels stay outside, as with `Seq2SeqTrainer`'s smoothing: no second loss inside."""
        with torch.autocast("cpu", self.dtype) if self.dtype else nullcontext():
            logits = self.model(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                decoder_input_ids=shifted(batch["labels"]),
                use_cache=False,
            ).logits
        return torch_loss(logits, batch["labels"])


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions and a tied output around it."""

    def __init__(self, sizes: dict[str, Any], vocab_size: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        width = sizes["d_model"]
        self.body = nn.Transformer(
            width,
            sizes["encoder_attention_heads"],
            sizes["encoder_layers"],
            sizes["decoder_layers"],
            sizes["encoder_ffn_dim"],
            DROPOUT,
            batch_first=True,
        )
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(1024, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.dropout, self.dtype = nn.Dropout(DROPOUT), dtype
        self.model = self.train()
        self.optimizer = torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings plus positions, `(B, L, D)`."""
        vectors = self.tokens(ids) * self.tokens.embedding_dim**0.5
        return self.dropout(vectors + self.positions.weight[: ids.shape[1]])

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Of one batch; masks in torch's way, True where nobody may look."""
        target, hidden = shifted(batch["labels"]), batch["attention_mask"] == 0
        length = target.shape[1]
        with torch.autocast("cpu", self.dtype) if self.dtype else nullcontext():
            states = self.body(
                self.embed(batch["input_ids"]),
                self.embed(target),
                tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
                src_key_padding_mask=hidden,
                memory_key_padding_mask=hidden,
                tgt_is_causal=True,
            )
            logits = nn.functional.linear(states, self.tokens.weight)
        return torch_loss(logits, batch["labels"])


ENGINES = {"hf_vanilla": Ours, "MarianMT": Marian, "torch.nn.Transformer": TorchTransformer}


def shifted(labels: Tensor) -> Tensor:
    """Labels behind the start token, `(B, T)`; -100 becomes padding."""
    return torch.cat((torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)), dim=1)


def torch_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Torch's own smoothed cross-entropy."""
    return nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING
    )


def step(engine: Any, batch: dict[str, Tensor]) -> float:
    """Forward, backward and update; returns the loss."""
    loss = engine.loss(batch)
    loss.backward()
    engine.optimizer.step()
    engine.optimizer.zero_grad(set_to_none=True)
    return loss.item()


def shares(engine: Any, batch: dict[str, Tensor]) -> dict[str, float]:
    """Which share of a step each group of operations takes, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(engine, batch)
    seconds = dict.fromkeys([*GROUPS, "everything else"], 0.0)
    for event in profile.key_averages():
        groups = (name for name, keys in GROUPS.items() if event.key.startswith(keys))
        seconds[next(groups, "everything else")] += event.self_cpu_time_total
    return {name: part / sum(seconds.values()) for name, part in seconds.items()}


def peak_megabytes() -> float:
    """The most memory this process has held so far; its parent's does not count (Linux)."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(connection: Connection, name: str, sizes: dict[str, Any], facts: dict[str, Any]) -> None:
    """One engine's process: batches in; CPU seconds, wall seconds and peak memory out."""
    torch.set_num_threads(facts["threads"])
    torch.manual_seed(0)
    dtype = torch.bfloat16 if facts["bf16"] else None
    engine, before = ENGINES[name](sizes, facts["vocab_size"], dtype), peak_megabytes()
    while (order := connection.recv()) is not None:
        arrays, is_profile = order
        batch = {key: torch.from_numpy(np.array(ids)) for key, ids in arrays.items()}
        cpu, wall = time.process_time(), time.perf_counter()
        result: Any = shares(engine, batch) if is_profile else step(engine, batch)
        spent = time.process_time() - cpu, time.perf_counter() - wall
        connection.send((*spent, peak_megabytes() - before, result))
