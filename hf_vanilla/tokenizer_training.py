# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Sentences to a trained `VanillaTokenizer`."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from .tokenization_vanilla import VanillaTokenizer

PAD_TOKEN, EOS_TOKEN = "<pad>", "</s>"
# two special tokens and the 256 bytes, without which some text would have no encoding
SMALLEST_VOCAB_SIZE = 258


def train_tokenizer(
    sentences: Iterable[str],
    *,
    vocab_size: int = 37_000,
    model_max_length: int = 1024,
    progress: bool = False,
) -> VanillaTokenizer:
    """Learn one byte-level BPE from the sentences of both languages (5.1).

    Args:
        sentences: text of both sides, in any order.
        vocab_size: entries at most, `<pad>` (0), `</s>` (1) and the 256 bytes included.
        model_max_length: tokens at which `truncation=True` cuts, `</s>` kept.
        progress: show a progress bar.

    Raises:
        ValueError: `vocab_size` is below 258, or there is no text at all.
    """
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size={vocab_size}: give at least {SMALLEST_VOCAB_SIZE}, which is <pad>, </s> "
            "and the 256 bytes"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD_TOKEN, EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    backend.train_from_iterator(_checked(sentences), trainer)
    end = (EOS_TOKEN, backend.token_to_id(EOS_TOKEN))
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", pair=f"$A $B {EOS_TOKEN}", special_tokens=[end]
    )
    return VanillaTokenizer(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        # "</s>" typed in a text is text
        split_special_tokens=True,
    )


def _checked(sentences: Iterable[str]) -> Iterable[str]:
    is_empty = True
    for sentence in sentences:
        is_empty = is_empty and not sentence.strip()
        yield sentence
    if is_empty:
        raise ValueError("no text to learn a vocabulary from: every sentence is empty")
