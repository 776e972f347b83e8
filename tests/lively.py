"""A small random model with varied outputs, and sources for it.

An untrained model with tied embeddings repeats one token, which hides most errors of a search. The
weights are in double precision, so that rounding cannot decide between equal hypotheses.
"""

import torch

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

PAD, EOS, V, D = 0, 1, 19, 12
SIZES = {
    "vocab_size": V,
    "d_model": D,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 13,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 11,
    "tie_word_embeddings": False,
}


def lively_model(model_class=VanillaForConditionalGeneration, **changes):
    """A model whose output layer is the embedding shifted by one row: it seldom repeats a token."""
    model = model_class(VanillaConfig(**{**SIZES, **changes})).eval().double()
    embedding = model.model.decoder.embed_tokens.weight
    with torch.no_grad():
        model.lm_head.weight.copy_(3 * embedding.roll(-1, 0))
        for name, weight in model.named_parameters():
            if "self_attn.out_proj" in name or "fc" in name:
                weight.mul_(0.5)
    return model


def sources(*lengths, side="right"):
    """One random sentence per length, padded to the longest."""
    ids = torch.randint(2, V, (len(lengths), max(lengths)))
    is_real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    is_real = is_real if side == "right" else is_real.flip(1)
    return {"input_ids": ids.masked_fill(~is_real, PAD), "attention_mask": is_real.long()}


def row_of(batch, row):
    """One sentence of a batch, without its padding."""
    real = batch["attention_mask"][row] == 1
    return {name: tensor[row : row + 1, real] for name, tensor in batch.items()}


def assert_same_sentence(in_batch, alone):
    """Equal token ids; in the batch, padding or end tokens of one kind may follow."""
    length = alone.shape[0]
    assert torch.equal(in_batch[:length], alone)
    rest = set(in_batch[length:].tolist())
    assert len(rest) <= 1
    assert rest <= {PAD, EOS}


def spoken(sequence, prompt_length=1):
    """Token ids after the prompt, up to and including the first end token, as a list."""
    ids = sequence[prompt_length:].tolist()
    return ids[: ids.index(EOS) + 1] if EOS in ids else ids


def log_probs_of(model, source, sequence, prompt_length=1):
    """Log-probability of each token after the prompt, from one forward pass."""
    ids = torch.tensor(spoken(sequence, prompt_length))
    whole = torch.cat((sequence[:prompt_length], ids))
    logits = model(**source, decoder_input_ids=whole[None, :-1], use_cache=False).logits[0]
    log_probs = logits[prompt_length - 1 :].log_softmax(dim=-1)
    return log_probs.gather(-1, ids[:, None]).squeeze(-1)


def gnmt(length, alpha=0.6):
    """The paper's length penalty of a hypothesis with `length` tokens."""
    return ((5 + length) / 6) ** alpha
