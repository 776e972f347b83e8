"""R-Drop, SimCut and BPE-dropout.

R-Drop: two passes with different dropout should agree (Wu et al. 2021). SimCut: so should a pass
from which some tokens are cut (Gao et al. 2022). BPE-dropout: another segmentation of each word at
each visit (Provilkov et al. 2020); the dropout of `tokenizers` has no seed, so the merges are done
here. What is drawn depends on the seed of the run and of the micro-batch alone.

Shapes: B batch, T target, V vocabulary.
"""

import json
import random
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from accelerate.utils import extract_model_from_parallel
from datasets import Dataset
from tokenizers import models
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedTokenizerBase
from transformers.modeling_outputs import Seq2SeqLMOutput

from hf_vanilla.data.batching import TokenBatchSampler
from hf_vanilla.models.kernels_vanilla import at_least_float32, row_blocks
from hf_vanilla.models.loss_vanilla import IGNORED_LABEL
from hf_vanilla.training.task import Batch

# segmentations drawn for each word; each visit of the word chooses one of them
DRAWS = 64
CACHED_DRAWS = 1 << 20
CUT_SHARE = 0.05  # of the tokens, in the second pass of SimCut
POOLED = 256  # micro-batches whose pairs are encoded, sorted and divided at once
LARGER = 1.02  # factor between two budgets of tokens that are tried


def rdrop_outputs(
    model: torch.nn.Module, batch: Batch, tokens: Tensor, *, alpha: float
) -> Seq2SeqLMOutput:
    """Loss and logits of a batch that passes the model twice, with two draws of dropout.

    The loss is half of the published one, so that it is comparable to the loss of one pass:
    the mean of both cross-entropies, and `alpha` / 2 times the mean of both divergences.

    Args:
        model: in training mode.
        batch: `input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`.
        tokens: `()` target tokens of the whole step.
        alpha: weight of the divergence.

    Returns:
        `loss`, `()` nats per target token; `logits` `(B, T, V)` of the first pass.
    """
    twice = {name: torch.cat([values, values]) for name, values in batch.items()}
    outputs = model(**twice, num_items_in_batch=2 * tokens)
    nats = divergence(outputs.logits, batch["labels"], reverse=0.5) / tokens
    outputs.loss = outputs.loss + alpha / 2 * nats
    outputs.logits, _ = outputs.logits.chunk(2)
    return outputs


def simcut_outputs(
    model: torch.nn.Module, batch: Batch, tokens: Tensor, *, alpha: float
) -> Seq2SeqLMOutput:
    """Loss and logits of a batch that passes the model twice, once with tokens cut from both sides.

    A cut token is looked up as the zero vector and keeps its position; as in the authors' code, the
    end of the source and the start of the target are never cut. The loss is the published one: the
    cross-entropy of the plain pass, and `alpha` times KL(plain || cut), with gradients of both.

    Args:
        model: in training mode, with `zero_pad_embedding`.
        batch: `input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`.
        tokens: `()` target tokens of the whole step.
        alpha: weight of the divergence.

    Returns:
        `loss`, `()` nats per target token; `logits` `(B, T, V)` of the plain pass.
    """
    own = extract_model_from_parallel(model, keep_torch_compile=False)
    sources, labels, mask = batch["input_ids"], batch["labels"], batch["attention_mask"]
    targets = own.prepare_decoder_input_ids_from_labels(labels)
    is_end = sources == own.config.eos_token_id
    is_start = torch.arange(targets.shape[1], device=targets.device) == 0
    pad = own.config.zero_token_id
    cut_sources, cut_targets = _cut(sources, is_end, pad), _cut(targets, is_start, pad)
    outputs = model(
        input_ids=torch.cat([sources, cut_sources]),
        attention_mask=torch.cat([mask, mask]),
        decoder_input_ids=torch.cat([targets, cut_targets]),
        labels=torch.cat([labels, torch.full_like(labels, IGNORED_LABEL)]),
        num_items_in_batch=tokens,
    )
    outputs.loss = outputs.loss + alpha * divergence(outputs.logits, labels, reverse=0.0) / tokens
    outputs.logits, _ = outputs.logits.chunk(2)
    return outputs


def _cut(ids: Tensor, is_kept: Tensor, pad: int) -> Tensor:
    """The ids with some replaced at random by the one that is looked up as zeros."""
    is_cut = torch.rand(ids.shape, device=ids.device) < CUT_SHARE
    return ids.masked_fill(is_cut & ~is_kept, pad)


def divergence(logits: Tensor, labels: Tensor, *, reverse: float) -> Tensor:
    """Kullback-Leibler divergence in nats, summed over the real target tokens; `()`.

    Args:
        logits: `(2B, T, V)` of p in the first half and of q in the second; computed in float32.
        labels: `(B, T)` int64; tokens below 0 do not count.
        reverse: share of KL(q || p); the rest is KL(p || q).
    """
    return _Divergence.apply(logits, (labels >= 0).flatten(), reverse)


class _Divergence(torch.autograd.Function):
    """The divergence and its gradient, block by block.

    Autograd would make about ten arrays of B T V numbers in float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, is_real: Tensor, reverse: float) -> Tensor:
        """`()`, of logits `(2B, T, V)` and `(B T,)` bool."""
        gradient = torch.empty_like(logits)
        halves = (*logits.flatten(0, 1).chunk(2), *gradient.flatten(0, 1).chunk(2))
        parts = (row_blocks(part, logits) for part in (*halves, is_real))
        blocks = [_write_gradient(*part, reverse=reverse) for part in zip(*parts, strict=True)]
        ctx.save_for_backward(gradient)
        return torch.stack(blocks).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the logits, times that of the divergence."""
        (gradient,) = ctx.saved_tensors
        return gradient * factor, None, None


def _write_gradient(
    first: Tensor,
    second: Tensor,
    first_out: Tensor,
    second_out: Tensor,
    is_real: Tensor,
    *,
    reverse: float,
) -> Tensor:
    """The divergence of `n` tokens, and its gradients into `first_out` and `second_out`.

    With r = log p - log q and shares a of KL(p || q) and b of KL(q || p), the gradients are
    p (a (r - E_p[r]) + b) - b q for the logits of p, and q (b (E_q[r] - r) + a) - a p for those of
    q.
    """
    log_p, log_q = (at_least_float32(logits).log_softmax(dim=-1) for logits in (first, second))
    ratio = log_p - log_q
    p, q = (logs.exp_().mul_(is_real[:, None]) for logs in (log_p, log_q))
    mean_p, mean_q = ((weights * ratio).sum(dim=-1, keepdim=True) for weights in (p, q))
    ahead = 1 - reverse
    first_out.copy_((ratio - mean_p).mul_(ahead).add_(reverse).mul_(p).sub_(q, alpha=reverse))
    second_out.copy_((mean_q - ratio).mul_(reverse).add_(ahead).mul_(q).sub_(p, alpha=ahead))
    return (ahead * mean_p - reverse * mean_q).sum()


class SubwordDropout:
    """Encodes text with merges of BPE left out at random.

    In each step of the segmentation of a word, every possible merge is left out with probability
    `rate`, and the first of the others by priority is done. The word is finished when no merge is
    possible or all were left out.

    Args:
        tokenizer: a fast tokenizer of BPE.
        rate: probability in [0, 1) to leave a merge out.
        seed: of the `DRAWS` segmentations of each word.
        max_length: a text that would have more tokens keeps its usual ones.

    Raises:
        ValueError: the tokenizer is no BPE, or a converted one of fairseq or FSMT.

    Examples:
        >>> import torch
        >>> from hf_vanilla import train_tokenizer
        >>> from hf_vanilla.text.regularization import SubwordDropout
        >>> tokenizer = train_tokenizer(["ein Haus", "a house"] * 9, vocab_size=300)
        >>> dropout = SubwordDropout(tokenizer, rate=0.5, seed=0, max_length=50)
        >>> (ids,) = dropout(["a house"], torch.Generator().manual_seed(0))
        >>> tokenizer.decode(ids, skip_special_tokens=True)
        'a house'
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, rate: float, seed: int, max_length: int
    ) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or not isinstance(backend.model, models.BPE):
            raise ValueError("bpe_dropout needs a fast BPE tokenizer: set it to 0")
        if tokenizer.init_kwargs.get("source_vocab_size") is not None:  # its ids are not the BPE's
            raise ValueError(
                "bpe_dropout cannot use the dictionaries of a tokenizer converted from fairseq or "
                "FSMT: set it to 0"
            )
        state = json.loads(backend.to_str())["model"]
        pairs = [m.split(" ") if isinstance(m, str) else m for m in state["merges"]]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self._ids: dict[str, int] = state["vocab"]
        self._pieces = {number: piece for piece, number in self._ids.items()}
        self._suffix = state["end_of_word_suffix"] or ""
        self._tokenizer, self._rate, self._seed = tokenizer, rate, seed
        self._max_length = max_length
        self._draw = lru_cache(maxsize=CACHED_DRAWS)(self._segmentation)

    def __call__(self, texts: Sequence[str], generator: torch.Generator) -> list[list[int]]:
        """Token ids of each text, end tokens included.

        Args:
            texts: raw text of either language.
            generator: on the CPU; chooses among the segmentations.
        """
        encoded = self._tokenizer(list(texts), verbose=False, return_attention_mask=False)
        rows = []  # the ids of each word of a text; special tokens are words
        for number in range(len(texts)):
            tokens = zip(encoded[number].ids, encoded[number].word_ids, strict=True)
            groups = groupby(tokens, lambda pair: pair[1])
            rows.append([tuple(token for token, _ in word) for _, word in groups])
        choices = iter(torch.randint(DRAWS, (sum(map(len, rows)),), generator=generator).tolist())
        found = []
        for words, usual in zip(rows, encoded.input_ids, strict=True):
            ids = [i for word in words for i in self._draw(word, next(choices))]
            found.append(ids if len(ids) <= self._max_length else usual)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # made anew in a worker process: the cache of draws cannot be pickled
        settings: dict[str, Any] = {"rate": self._rate, "seed": self._seed}
        made = partial(SubwordDropout, **settings, max_length=self._max_length)
        return made, (self._tokenizer,)

    def _segmentation(self, word: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Draw number `number` of a word."""
        text = "".join(self._pieces.get(token, "") for token in word)
        symbols = list(text.removesuffix(self._suffix))  # from which merges build the word
        if symbols and len(symbols) < len(text):
            symbols[-1] += self._suffix
        whole = self._merged(symbols, None)
        is_built = [self._ids.get(piece) for piece in whole] == list(word)
        if not is_built or len(symbols) == 1:  # an unknown or a special token; a letter
            return word
        draw = random.Random(f"{self._seed} {number} {word}")
        return tuple(self._ids[piece] for piece in self._merged(symbols, draw))

    def _merged(self, symbols: Sequence[str], draw: random.Random | None) -> list[str]:
        """The pieces of a word; without `draw` no merge is left out."""
        pieces = list(symbols)
        while True:
            ranked = sorted(
                (rank, index)
                for index, pair in enumerate(pairwise(pieces))
                if (rank := self._ranks.get(pair)) is not None
            )
            kept = (index for _, index in ranked if draw is None or draw.random() >= self._rate)
            index = next(kept, None)
            if index is None:
                return pieces
            pieces[index : index + 2] = [pieces[index] + pieces[index + 1]]


class DropoutOrder:
    """Micro-batches of pairs that have similar lengths after BPE-dropout.

    An epoch is cut into pools of about `POOLED` micro-batches of a sampler. The pairs of a pool are
    encoded at once and divided anew into as many micro-batches, so each epoch has each pair once.
    A pool depends on the seed, the epoch and its number alone.

    Args:
        sampler: batches of every epoch, by the lengths without dropout.
        text: rows of `source` and `target`.
        dropout: encodes them.
        seed: of the draws.
    """

    def __init__(
        self, sampler: TokenBatchSampler, text: Dataset, dropout: SubwordDropout, seed: int
    ) -> None:
        self._sampler, self._text, self._dropout, self._seed = sampler, text, dropout, seed
        pools = -(-len(sampler) // POOLED)
        self._bounds = np.linspace(0, len(sampler), pools + 1).astype(int)
        self._latest: tuple[tuple[int, int], list[list[dict[str, list[int]]]]] | None = None

    def __getitem__(self, number: int) -> list[dict[str, list[int]]]:
        """`input_ids` and `labels` of each pair of micro-batch `number` of the run."""
        epoch, index = divmod(number, len(self._sampler))
        pool = int(np.searchsorted(self._bounds, index, side="right")) - 1
        if self._latest is None or self._latest[0] != (epoch, pool):
            self._latest = (epoch, pool), self._batches(epoch, pool)
        return self._latest[1][index - self._bounds[pool]]

    def _batches(self, epoch: int, pool: int) -> list[list[dict[str, list[int]]]]:
        """All micro-batches of a pool."""
        first, end = self._bounds[pool : pool + 2].tolist()
        rows = [row for index in range(first, end) for row in self._sampler.batch(epoch, index)]
        (seed,) = np.random.SeedSequence((self._seed, epoch, pool)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed) >> 1)
        pairs = self._text[rows]
        sources, targets = (self._dropout(pairs[side], generator) for side in ("source", "target"))
        lengths = np.array([[len(ids) for ids in side] for side in (sources, targets)])
        count = end - first
        budget = float(max(lengths.max(), lengths.sum(axis=1).max() // count))
        # the smallest batches that are not more than before
        while len(TokenBatchSampler(*lengths, tokens_per_batch=int(budget))) > count:
            budget = budget * LARGER + 1
        divided = TokenBatchSampler(
            *lengths, tokens_per_batch=int(budget), seed=int(seed) >> 1, multiple_of=count
        )
        return [
            [{"input_ids": sources[row], "labels": targets[row]} for row in batch]
            for batch in divided.batches(epoch)
        ]
