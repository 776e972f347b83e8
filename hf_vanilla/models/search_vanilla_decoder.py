# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The decoder during a search, of one model or of an ensemble: one row of cache for all beams.

The newest tokens of the n beams are n queries of the same row, and a mask lets each beam attend to
its own past. So the source's keys and values exist once per sentence, and no step reorders or
copies the cache.

Shapes: B sentences at the start, b of them still active, n beams, P prompt, S source, D `d_model`,
V vocabulary. A slot is one entry of the self-attention cache: a token of the prompt or of a beam.
"""

import math
import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from .attention_vanilla import padding_mask
from .kernels_vanilla import in_autocast_bfloat16
from .positions_vanilla import SinusoidalPositions
from .pretrained_vanilla import VanillaPreTrainedModel

AVERAGES = ("probabilities", "log_probabilities")
# sizes and ids that all models must share
SHARED_FIELDS = (
    *("vocab_size", "target_vocab_size"),
    *("eos_token_id", "pad_token_id", "decoder_start_token_id"),
)
# steps for which the storage of the cache grows at once, and positions are computed
STEPS_AT_ONCE = 32
# the same where attention reads the whole storage; for longer hypotheses, both double
PADDED_STEPS_AT_ONCE = 8
# the storage has at least so many of these parts before they double
LEAST_PARTS = 8
# size from which a storage of keys or values is mapped by itself
MAPPED_BYTES = 2**20


def new_storage(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros of a shape, in the dtype and on the device of `like`.

    On a CPU, a large array gets pages of its own, which go back to the system with it. In the heap
    of the C library, the storages of growing caches leave gaps, each too small for the next one.
    """
    size = math.prod(shape) * like.dtype.itemsize
    if like.device.type != "cpu" or size < MAPPED_BYTES:
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


class GrowingLayer(DynamicLayer):
    """One layer's keys and values in storage that grows in large parts.

    `keys` and `values` are views of the filled part, `(B, H, slots, K)`. In bfloat16 on a CPU, they
    may be the whole storage, whose spare slots a mask has to hide: torch copies a part of an array
    before it multiplies it, which takes longer than the product.

    Args:
        beams: n; the storage grows for several steps at once.
        new_slots: `(n,)` int64, where a captured step writes, which sees the whole storage; None:
            after the filled part.
    """

    def __init__(self, beams: int, new_slots: Tensor | None) -> None:
        super().__init__()
        self.beams, self.new_slots = beams, new_slots
        self.slots = 0
        self.is_padded = False
        self.stored_keys: Tensor | None = None
        self.stored_values: Tensor | None = None

    def width(self, slots: int) -> int:
        """Slots of `keys` when `slots` are filled, after the first update."""
        return self.room(slots) if self.is_padded else slots

    def room(self, slots: int) -> int:
        """Slots of the storage for so many filled ones."""
        is_often_grown = self.is_padded and self.new_slots is None
        part = self.beams * (PADDED_STEPS_AT_ONCE if is_often_grown else STEPS_AT_ONCE)
        while part * LEAST_PARTS < slots:
            part *= 2
        return -(-slots // part) * part

    def _with_room(self, stored: Tensor | None, like: Tensor, slots: int) -> Tensor:
        """Storage `(b, H, room, K)` for so many slots: the present one, or a copy with more."""
        stored = like[:, :, :0] if stored is None else stored[: len(like)]
        if stored.shape[2] >= slots:
            return stored
        # zeros: a NaN in a spare slot would spread
        grown = new_storage(stored, (*stored.shape[:2], self.room(slots), stored.shape[3]))
        grown[:, :, : self.slots] = stored[:, :, : self.slots]
        return grown

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the slots `(B, H, new, K)`; return keys and values of all slots so far."""
        self.keys = self.values = None  # a view would keep the storage that grows
        begin, end = self.slots, self.slots + key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            is_copied = key_states.dtype == torch.bfloat16 and key_states.device.type == "cpu"
            # one beam has no mask unless steps are captured
            self.is_padded = self.new_slots is not None or (is_copied and self.beams > 1)
        self.stored_keys = self._with_room(self.stored_keys, key_states, end)
        self.stored_values = self._with_room(self.stored_values, value_states, end)
        if begin and self.new_slots is not None:
            self.stored_keys.index_copy_(2, self.new_slots, key_states)
            self.stored_values.index_copy_(2, self.new_slots, value_states)
        else:
            self.stored_keys[:, :, begin:end] = key_states
            self.stored_values[:, :, begin:end] = value_states
        self.slots = end
        shown = self.width(end) if begin else end  # the prompt has no mask
        self.keys, self.values = self.stored_keys[:, :, :shown], self.stored_values[:, :, :shown]
        return self.keys, self.values


class BeamCache(EncoderDecoderCache):
    """The KV cache of one search: a row per sentence, whatever the number of beams.

    Args:
        beams: n.
        new_slots: as of `GrowingLayer`.
    """

    def __init__(self, beams: int, new_slots: Tensor | None = None) -> None:
        make_layer: Any = partial(GrowingLayer, beams, new_slots)
        super().__init__(Cache(layer_class_to_replicate=make_layer), DynamicCache())

    def select(self, rows: Tensor) -> None:
        """Keep sentences `rows`, in that order; only rows that change are copied.

        Args:
            rows: `(b,)` int64, b <= B; `rows[i]` is either i or at least b.
        """
        changed = (rows != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
        for cache in (self.self_attention_cache, self.cross_attention_cache):
            for layer in cache.layers:
                for states in (layer.keys, layer.values):
                    states[changed] = states[rows[changed]]
                layer.keys, layer.values = layer.keys[: len(rows)], layer.values[: len(rows)]

    def per_beam(self, past: Tensor) -> EncoderDecoderCache:
        """The same keys and values in transformers' layout: a row per beam, a slot per token.

        Args:
            past: `(B, n, slots)` bool, True for the slots of a beam's own past, L in each row.
        """
        rows, beams = past.shape[:2]
        slots = past.nonzero()[:, 2].view(rows, 1, -1, 1)  # (B, 1, n * L, 1)
        own, of_source = DynamicCache(), DynamicCache()
        for index, layer in enumerate(self.self_attention_cache.layers):
            of_beams = (
                states.gather(2, slots.expand(-1, states.shape[1], -1, states.shape[3]))
                .unflatten(2, (beams, -1))
                .transpose(1, 2)
                .flatten(0, 1)  # (B * n, H, L, K)
                for states in (layer.keys, layer.values)
            )
            own.update(*of_beams, index)
        for index, layer in enumerate(self.cross_attention_cache.layers):
            repeated = (s.repeat_interleave(beams, dim=0) for s in (layer.keys, layer.values))
            of_source.update(*repeated, index)
        return EncoderDecoderCache(own, of_source)


class StepGraph:
    """A function as one CUDA graph: the host launches it, not each of its operators.

    Args:
        function: of tensors; it ran before with tensors of these shapes, and reads and writes
            arrays that stay where they are.
        inputs: its arguments, which are copied; at least one, all on one GPU.
        pool: memory shared with graphs that never run at the same time, from
            `torch.cuda.graph_pool_handle`; None: of its own.
    """

    def __init__(self, function: Callable, *inputs: Tensor, pool: Any = None) -> None:
        self.inputs = [values.clone() for values in inputs]
        self.graph = torch.cuda.CUDAGraph()
        device = inputs[0].device
        stream = _capture_stream(device, threading.get_ident())
        present = torch.cuda.current_stream(device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream):  # other threads may use the GPU
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.outputs = function(*self.inputs)
            finally:  # also after an error, so that the process can go on
                self.graph.capture_end()
        present.wait_stream(stream)

    def __call__(self, *inputs: Tensor) -> Any:
        """What the function returns for other values, in arrays that the next call overwrites."""
        for own, values in zip(self.inputs, inputs, strict=True):
            own.copy_(values)
        self.graph.replay()
        return self.outputs


@lru_cache
def _capture_stream(device: torch.device, _thread: int) -> torch.cuda.Stream:
    """One for all graphs of a thread: memory is used again on the stream that had it before."""
    return torch.cuda.Stream(device)


def can_capture(model: VanillaPreTrainedModel, states: Tensor) -> bool:
    """Whether steps of the search can be CUDA graphs.

    A graph repeats what runs on one GPU, not what Python does beside it, such as a hook.
    """
    if states.device.type != "cuda" or torch.is_autocast_enabled("cuda"):
        return False
    return not any(
        part._forward_hooks or part._forward_pre_hooks or hasattr(part, "_hf_hook")
        for part in model.modules()
    )


class SearchDecoder:
    """Stateful decoder: pass the last tokens of all beams; it keeps the KV cache.

    Args:
        model: `VanillaForConditionalGeneration` in evaluation mode.
        encoder_hidden_states: `(B, S, D)`.
        attention_mask: `(B, S)`, 1 = real token; None: all are.
        beams: n.
    """

    def __init__(
        self,
        model: VanillaPreTrainedModel,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None,
        *,
        beams: int,
    ) -> None:
        self.decoder: Any = model.base_model.decoder
        self.lm_head: Any = model.get_output_embeddings()
        self.encoder_hidden_states = states = encoder_hidden_states
        self.beams = beams
        self.is_captured = can_capture(model, states)
        self.new_slots = torch.arange(-beams, 0, device=states.device) if self.is_captured else None
        self.cache = BeamCache(beams, self.new_slots)
        self.length = 0  # tokens of a hypothesis
        self.positions: Tensor | None = None
        # (b, n, room): 0 for a beam's own past, else -inf; None if all slots are of one beam
        self.mask: Tensor | None = None
        self.slots = 0
        self.graph: StepGraph | None = None
        self.is_steady = False  # whether the next step finds the arrays of the last one
        self.source_masks = [
            padding_mask(
                model.config, states.new_empty((len(states), n, 0)), attention_mask, states
            )
            for n in (1, beams)
        ]

    def read_prompt(self, input_ids: Tensor) -> Tensor:
        """Logits `(B * n, V)` after the prompt `(B, P)`, which is read once for all beams."""
        hidden_states = self.decoder.embed(input_ids, None, None)  # (B, P, D)
        self.length = input_ids.shape[1]
        source_mask = self.source_masks[0]
        if source_mask is not None:
            source_mask = source_mask.expand(-1, -1, self.length, -1)
        hidden_states = self._layers(hidden_states, None, source_mask)[:, -1:]
        self.slots, self.like = self.length, self.decoder.embed_tokens(input_ids[:1, :1])
        if self.new_slots is not None:
            self.new_slots += self.length
        if self.beams > 1 or self.is_captured:
            shape = (len(input_ids), self.beams, self.beams)
            self.mask = hidden_states.new_zeros((*shape[:2], self.length))
            # of its step's n slots, each beam attends to its own
            itself = torch.eye(self.beams, dtype=torch.bool, device=hidden_states.device)
            self.newest_mask = self.mask.new_zeros(shape).masked_fill_(~itself, float("-inf"))
        logits = self.lm_head(self.decoder.layer_norm(hidden_states))
        return logits.expand(-1, self.beams, -1).flatten(0, 1)

    def read(self, input_ids: Tensor) -> Tensor:
        """Logits `(b * n, V)` after one more token of each beam, `(b, n)`."""
        self.slots += self.beams
        layer: Any = self.cache.self_attention_cache.layers[0]
        width = layer.width(self.slots)
        if self.mask is not None:
            if width > self.mask.shape[2]:
                more = layer.room(self.slots) - self.mask.shape[2]
                self.mask = nn.functional.pad(self.mask, (0, more), value=float("-inf"))
                self.graph, self.is_steady = None, False
            self.mask[:, :, self.slots - self.beams : self.slots] = self.newest_mask
        if self.new_slots is not None:
            self.new_slots += self.beams
        position = self._position(self.like)
        if self.is_steady and self.graph is None:
            self.graph = StepGraph(self._step, input_ids, position)
        if self.graph is None:
            logits = self._step(input_ids, position)
        else:
            logits = self.graph(input_ids, position).clone()
            for each in self.cache.self_attention_cache.layers:  # they did not see the step
                each.slots = self.slots
        self.is_steady = self.is_captured
        self.length += 1
        return logits

    def _step(self, input_ids: Tensor, position: Tensor) -> Tensor:
        """Logits `(b * n, V)` of the newest tokens `(b, n)` at their position."""
        mask = None
        if self.mask is not None:
            layer: Any = self.cache.self_attention_cache.layers[0]
            mask = self.mask[:, :, : layer.width(self.slots)].unsqueeze(1)  # (b, 1, n, slots)
        vectors = self.decoder.embed_tokens(input_ids) * self.decoder.embed_scale
        hidden_states = in_autocast_bfloat16(vectors + position)
        hidden_states = self._layers(hidden_states, mask, self.source_masks[1])
        return self.lm_head(self.decoder.layer_norm(hidden_states).flatten(0, 1))

    def _position(self, like: Tensor) -> Tensor:
        """The position of the next token, `(D,)` or `(1, D)`; sinusoids of many steps at once."""
        if not isinstance(self.decoder.embed_positions, SinusoidalPositions):
            return self.decoder.embed_positions(1, self.length, like)
        step = self.length % STEPS_AT_ONCE
        if self.positions is None or not step:
            self.positions = self.decoder.embed_positions(STEPS_AT_ONCE, self.length - step, like)
        return self.positions[step]

    def reorder(self, parents: Tensor) -> None:
        """Beam i of each sentence continues beam `parents[:, i]`; `(b, n)` int64."""
        if self.mask is not None:
            past = self.mask[:, :, : self.slots]
            past.copy_(past.gather(1, parents.unsqueeze(-1).expand(past.shape)))

    def drops(self, active: list[bool]) -> bool:
        """Whether it saves time to drop the sentences that are not active, b of them or fewer.

        A captured step is captured anew for another number of sentences.
        """
        left = sum(active)
        return 2 * left <= len(active) if self.is_captured else left < len(active)

    def select(self, rows: Tensor) -> None:
        """Keep sentences `rows`, in that order, as `BeamCache.select` says."""
        self.cache.select(rows)
        self.graph, self.is_steady = None, False
        # after the prompt, the layers take the source from the cache and read only the shape here
        self.encoder_hidden_states = self.encoder_hidden_states[: len(rows)]
        self.source_masks = [None if mask is None else mask[rows] for mask in self.source_masks]
        if self.mask is not None:
            self.mask, self.newest_mask = self.mask[rows], self.newest_mask[: len(rows)]

    def past_key_values(self) -> EncoderDecoderCache:
        """The cache that transformers' own search would return."""
        if self.mask is not None:
            return self.cache.per_beam(self.mask[:, :, : self.slots] == 0)
        keys = self.cache.self_attention_cache.layers[0].keys
        return self.cache.per_beam(keys.new_ones((len(keys), 1, keys.shape[2]), dtype=torch.bool))

    def _layers(
        self, hidden_states: Tensor, mask: Tensor | None, source_mask: Tensor | None
    ) -> Tensor:
        for layer in self.decoder.layers:
            hidden_states = layer(
                hidden_states,
                mask,
                self.encoder_hidden_states,
                source_mask,
                cache=self.cache,
            )
        return hidden_states


# --- ensembles ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ensemble:
    """Models that translate together with the one whose `generate(ensemble=...)` is called.

    Attributes:
        models: `VanillaForConditionalGeneration`s in evaluation mode, on the same device.
        average: of `"probabilities"`, or of `"log_probabilities"`, whose mean is normalized.

    Raises:
        ValueError: there is no model, or the average is unknown.
    """

    models: Sequence[Any]
    average: str = "probabilities"

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("an ensemble needs a second model")
        if self.average not in AVERAGES:
            raise ValueError(f"average={self.average!r}: choose one of {', '.join(AVERAGES)}")

    def check(self, first: VanillaPreTrainedModel) -> None:
        """Refuse models that do not share the vocabulary of the first one.

        Raises:
            ValueError: sizes or special ids differ, or a model trains.
        """
        for model in self.models:
            for name in SHARED_FIELDS:
                values = [getattr(m.config, name) for m in (first, model)]
                if values[0] != values[1]:
                    raise ValueError(
                        f"{name} is {values[0]} and {values[1]}: give models of one vocabulary"
                    )
            if model.training:
                raise ValueError("a model of the ensemble is in training mode: call eval()")

    @torch.no_grad()
    def encode(
        self, input_ids: Tensor, attention_mask: Tensor | None
    ) -> "Callable[..., EnsembleDecoder]":
        """Read the source `(B, S)` with every model.

        Returns:
            What a search calls in place of `SearchDecoder`.
        """
        encoders = (model.base_model.encoder for model in self.models)
        encoded = [encoder(input_ids, attention_mask).last_hidden_state for encoder in encoders]
        others = list(zip(self.models, encoded, strict=True))
        return partial(EnsembleDecoder, others=others, average=self.average)


class EnsembleDecoder(SearchDecoder):
    """The calling model and others that read the same tokens.

    Its logits are the joined log-probabilities of all.

    Args:
        *own: model, states and mask, as of `SearchDecoder`.
        beams: n.
        others: further models, each with the states of its encoder.
        average: as in `Ensemble`.
    """

    def __init__(self, *own: Any, beams: int, others: Sequence[Any], average: str) -> None:
        super().__init__(*own, beams=beams)
        mask, self.average = own[2], average
        self.others = [SearchDecoder(model, states, mask, beams=beams) for model, states in others]

    def read_prompt(self, input_ids: Tensor) -> Tensor:
        """Log-probabilities `(B * n, V)` after the prompt `(B, P)`."""
        others = (other.read_prompt(input_ids) for other in self.others)
        return joined_logits([super().read_prompt(input_ids), *others], self.average)

    def read(self, input_ids: Tensor) -> Tensor:
        """Log-probabilities `(b * n, V)` after one more token of each beam, `(b, n)`."""
        others = (other.read(input_ids) for other in self.others)
        return joined_logits([super().read(input_ids), *others], self.average)

    def reorder(self, parents: Tensor) -> None:
        """As `SearchDecoder.reorder`."""
        super().reorder(parents)
        for other in self.others:
            other.reorder(parents)

    def select(self, rows: Tensor) -> None:
        """As `SearchDecoder.select`."""
        super().select(rows)
        for other in self.others:
            other.select(rows)


def joined_logits(logits: Sequence[Tensor], average: str) -> Tensor:
    """The mean of the predictions of several models, as log-probabilities.

    Args:
        logits: `(N, V)` of each model.
        average: as in `Ensemble`.
    """
    log_probs = torch.stack([one.float().log_softmax(dim=-1) for one in logits])
    if average == "probabilities":
        return log_probs.logsumexp(dim=0) - math.log(len(logits))
    return log_probs.mean(dim=0).log_softmax(dim=-1)
