# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Train a `VanillaTokenizer` on sentences."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from hf_vanilla.data.lines import check_sentences, read_lines
from hf_vanilla.files import whole_folder
from hf_vanilla.models.tokenization_vanilla import VanillaTokenizer
from hf_vanilla.options import Options, option

PAD_TOKEN, EOS_TOKEN = "<pad>", "</s>"
# two special tokens and the 256 bytes, so that every text can be encoded
SMALLEST_VOCAB_SIZE = 258
# the time of BPE training grows with the square of the longest word
LONGEST_WORD = 1_000
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")


def train_tokenizer(
    sentences: Iterable[str],
    *,
    vocab_size: int = 37_000,
    model_max_length: int = 1024,
    progress: bool = False,
) -> VanillaTokenizer:
    """Train one byte-level BPE tokenizer on the sentences of both languages (5.1).

    White space is normalized before anything else: a run of it is one space, and at the start and
    the end of a text there is none. So blanks cannot change a translation.

    Args:
        sentences: text of both sides, in any order.
        vocab_size: maximum number of tokens, `<pad>` (0), `</s>` (1) and the 256 bytes included.
        model_max_length: tokens to which `truncation=True` cuts, `</s>` included.
        progress: show a progress bar.

    Raises:
        ValueError: `vocab_size` is below 258, `sentences` is one text, or there is no text at all.
    """
    check_sentences(sentences)
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size={vocab_size}: give at least {SMALLEST_VOCAB_SIZE}, for <pad>, </s> "
            "and the 256 bytes"
        )
    backend = Tokenizer(models.BPE())
    # regular expressions that JavaScript reads alike; its own strip also takes U+FEFF
    steps = (Regex(r"\p{White_Space}+"), " "), (Regex("^ | $"), "")
    backend.normalizer = normalizers.Sequence([normalizers.Replace(*step) for step in steps])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD_TOKEN, EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    backend.train_from_iterator(_prepared(sentences), trainer)
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
        # "</s>" typed in a text is not special
        split_special_tokens=True,
    )


def _prepared(sentences: Iterable[str]) -> Iterator[str]:
    """The sentences, with words of more than `LONGEST_WORD` characters cut into several."""
    is_empty = True
    for sentence in sentences:
        is_empty = is_empty and not sentence.strip()
        start = 0
        for word in _LONG_WORD.finditer(sentence) if len(sentence) > LONGEST_WORD else ():
            yield sentence[start : word.end()]
            start = word.end()
        yield sentence[start:]
    if is_empty:
        raise ValueError("no text to train the tokenizer on: every sentence is empty")


@dataclass(frozen=True, kw_only=True)
class TrainTokenizerOptions(Options):
    """Train a tokenizer on text files."""

    files: list[str] = option(text="text of both languages, plain or .gz")
    output: str = option(text="folder for the tokenizer")
    vocab_size: int = option(37_000, "maximum number of tokens, at least 258")
    model_max_length: int = option(1024, "tokens to which it truncates")


def train_tokenizer_on_files(options: TrainTokenizerOptions) -> Path:
    """Train one tokenizer on files and save it; returns the folder.

    Raises:
        ValueError: a file is not UTF-8, or all files are empty.
        OSError: a file cannot be read, or the output exists.
    """
    with whole_folder(options.output) as folder:
        tokenizer = train_tokenizer(
            chain.from_iterable(read_lines(file) for file in options.files),
            vocab_size=options.vocab_size,
            model_max_length=options.model_max_length,
            progress=sys.stdout.isatty(),  # the progress bar writes line feeds to stdout
        )
        tokenizer.save_pretrained(folder)
    return Path(options.output)
