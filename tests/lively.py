"""A small random model with much to say, and sentences to say it about.

An untrained model with a tied output repeats one word for ever, which hides most mistakes of a
search. Double precision, so that no two ways to compute a logit can break a tie.
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
    """Left to itself, the model would count down from each word to the next of lower id."""
    model = model_class(VanillaConfig(**{**SIZES, **changes})).eval().double()
    words = model.model.decoder.embed_tokens.weight
    with torch.no_grad():
        model.lm_head.weight.copy_(3 * words.roll(-1, 0))
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
    """Equal word for word; in the batch, filling of one kind may follow."""
    length = alone.shape[0]
    assert torch.equal(in_batch[:length], alone)
    filling = set(in_batch[length:].tolist())
    assert len(filling) <= 1
    assert filling <= {PAD, EOS}


def spoken(sequence, prompt_length=1):
    """What was said behind the prompt, up to and with the first end token, as a list."""
    said = sequence[prompt_length:].tolist()
    return said[: said.index(EOS) + 1] if EOS in said else said


def log_probs_of(model, source, sequence, prompt_length=1):
    """Log probability of each word behind the prompt, read in one pass."""
    said = torch.tensor(spoken(sequence, prompt_length))
    whole = torch.cat((sequence[:prompt_length], said))
    logits = model(**source, decoder_input_ids=whole[None, :-1], use_cache=False).logits[0]
    log_probs = logits[prompt_length - 1 :].log_softmax(dim=-1)
    return log_probs.gather(-1, said[:, None]).squeeze(-1)


def gnmt(length, alpha=0.6):
    """The paper's length penalty, for the numbers of words that beams have."""
    return ((5 + length) / 6) ** alpha
