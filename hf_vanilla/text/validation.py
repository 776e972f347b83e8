"""Validation of a translation model: NLL of all pairs, translations by all processes, scores."""

from itertools import count

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import PairCollator, TokenBatchSampler

from .decoding import Sentence, SentenceDecoder, generated_texts
from .encoding import EncodedPairs


@torch.no_grad()
def validation_nll(
    accelerator: Accelerator,
    model: PreTrainedModel,
    pairs: EncodedPairs,
    collate: PairCollator,
    *,
    tokens_per_batch: int,
) -> float:
    """Unsmoothed negative log-likelihood in nats per target token, over all pairs and processes.

    Args:
        accelerator: the processes; each measures its share.
        model: in evaluation mode, where its loss is unsmoothed.
        pairs: encoded validation pairs.
        collate: makes batches of their rows.
        tokens_per_batch: most tokens per side, padding included.
    """
    batches = TokenBatchSampler(
        pairs.source_lengths, pairs.target_lengths, tokens_per_batch=tokens_per_batch
    ).batches(0)[accelerator.process_index :: accelerator.num_processes]
    total = torch.zeros((), device=accelerator.device)
    tables = pairs.rows.with_format("arrow")
    for rows in batches:
        batch = collate(tables[rows])
        on_device = {name: ids.to(accelerator.device) for name, ids in batch.items()}
        total += model(**on_device, num_items_in_batch=1).loss
    return accelerator.reduce(total).item() / int(pairs.target_lengths.sum())


def validation_translations(
    accelerator: Accelerator,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
) -> list[str]:
    """The model's translations in the order of the pairs; each process translates its share.

    Args:
        accelerator: the processes.
        model: in evaluation mode; decodes with its generation config.
        tokenizer: of both languages.
        pairs: rows of `source` and `target`.
    """
    rows = range(accelerator.process_index, len(pairs), accelerator.num_processes)
    sentences = map(Sentence, pairs.select(rows)["source"][:], count(1))
    texts = SentenceDecoder(tokenizer).results(
        sentences, lambda rows, _: [text for text, _ in generated_texts(model, tokenizer, rows)]
    )
    parts = gather_object(list(zip(rows, texts, strict=True)))
    return [text for _, text in sorted(parts)]


@torch.no_grad()
def plain_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of the labels in nats, summed, unsmoothed.

    Args:
        logits: `(B, T, V)`; converted to float32 a few rows at a time.
        labels: `(B, T)` int64; -100 is padding.
    """
    parts = zip(logits.flatten(0, 1).split(1024), labels.flatten().split(1024), strict=True)
    return torch.stack(
        [cross_entropy(rows.float(), ids, reduction="sum") for rows, ids in parts]
    ).sum()
