"""Log-probabilities of given target tokens.

Shapes: B batch, S source, T target, V vocabulary.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_vanilla.data.batching import batch_bounds, padded
from hf_vanilla.models.search_vanilla import NAN_CAUSE

from .attentions import start_token_id


@torch.inference_mode()
def log_probs_of_pairs(
    model: PreTrainedModel,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    tokens_per_batch: int = 4096,
) -> list[list[float]]:
    """Log-probability in nats of every target token, given the source and the tokens before it.

    Args:
        model: an encoder-decoder in evaluation mode.
        pairs: input ids and target ids of each pair; the targets have no start token.
        tokens_per_batch: upper limit of pairs times longest side.

    Returns:
        One list per pair, in the same order, with one number per target id.

    Raises:
        ValueError: a log-probability is NaN.
    """
    longest = [max(len(source), len(target)) for source, target in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -longest[i])
    lengths = np.minimum([longest[i] for i in order], tokens_per_batch)
    found: list[list[float]] = [[] for _ in pairs]
    for begin, end in pairwise(batch_bounds(lengths, tokens_per_batch).tolist()):
        batch = order[begin:end]
        log_probs = _batch_log_probs(model, [pairs[i] for i in batch]).tolist()
        for i, row in zip(batch, log_probs, strict=True):
            found[i] = row[: len(pairs[i][1])]
            if any(map(math.isnan, found[i])):
                raise ValueError(f"log-probabilities are NaN: {NAN_CAUSE}")
    return found


def _batch_log_probs(
    model: PreTrainedModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> torch.Tensor:
    """`(B, T)`; entries behind a pair's target are meaningless."""
    pad, device = model.config.pad_token_id, model.device
    input_ids = padded([source for source, _ in pairs], pad)  # (B, S)
    targets = padded([target for _, target in pairs], pad).to(device)  # (B, T)
    lengths = torch.tensor([len(source) for source, _ in pairs])
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long()
    start = targets.new_full((len(pairs), 1), start_token_id(model))
    logits = model(
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        # padding is on the right, and the decoder is causal: no decoder_attention_mask is needed
        decoder_input_ids=torch.cat([start, targets[:, :-1]], dim=1),
        use_cache=False,
    ).logits  # (B, T, V)
    log_probs = logits.float().log_softmax(dim=-1)
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
