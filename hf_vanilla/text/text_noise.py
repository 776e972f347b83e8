"""Noise for source text, so that a model learns to read other casing and typing errors."""

import random
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .mixture import MixtureCorpus

SWAP, DELETE, REPEAT, REPLACE = range(4)


def noisy_text(text: str, key: str, *, casing: float, typos: float) -> str:
    """The text with another casing and with typing errors; a function of the arguments alone.

    Args:
        text: one sentence.
        key: what is drawn depends on the text and on this.
        casing: probability in [0, 1] that the whole text is lowercased, uppercased, or has its
            first letters changed to capitals; each of them is as likely.
        typos: probability in [0, 1) per letter of an error: two neighbours change places, or the
            letter is left out, doubled, or replaced by another letter of the text.

    Examples:
        >>> from hf_vanilla.text.text_noise import noisy_text
        >>> noisy_text("two men sit", "seed 1", casing=0, typos=0.3)
        'twoo men sit'
    """
    draw = random.Random(f"{key} {text}")
    if draw.random() < casing:
        text = draw.choice((str.lower, str.upper, str.title))(text)
    return _with_typos(text, draw, typos) if typos else text


def _with_typos(text: str, draw: random.Random, rate: float) -> str:
    letters, characters, found = sorted(filter(str.isalpha, text)), list(text), []
    while characters:
        character = characters.pop(0)
        if not character.isalpha() or draw.random() >= rate:
            found.append(character)
            continue
        error = draw.randrange(4)
        if error == SWAP and characters and characters[0].isalpha():
            found += [characters.pop(0), character]
        elif error == REPEAT:
            found += [character, character]
        elif error == REPLACE:
            found.append(draw.choice(letters))
        elif error == SWAP:
            found.append(character)
    # a text of few letters must not become empty
    return "".join(found) if "".join(found).strip() else text


class SourceNoise:
    """Changes the sources of a mixture anew at each visit.

    Args:
        corpora: their rates of noise.
        firsts: `(C + 1,)` as of `first_rows`.
        tokenizer: of the run.
        max_length: a text that would have more tokens stays as it is.
    """

    def __init__(
        self,
        corpora: Sequence[MixtureCorpus],
        firsts: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
    ) -> None:
        self._corpora, self._firsts = corpora, firsts
        self._tokenizer, self._max_length = tokenizer, max_length

    def __call__(
        self, sources: Sequence[str], rows: Sequence[int], generator: torch.Generator
    ) -> list[str]:
        """The sources with noise, their tags unchanged.

        Args:
            sources: text with tags.
            rows: number of each among all rows.
            generator: on the CPU; chooses the noise.
        """
        keys = torch.randint(1 << 62, (len(rows),), generator=generator).tolist()
        places = np.searchsorted(self._firsts, rows, side="right") - 1
        noisy = [
            self._changed(text, self._corpora[place], str(key))
            for text, place, key in zip(sources, places.tolist(), keys, strict=True)
        ]
        ids = self._tokenizer(noisy, verbose=False, return_attention_mask=False).input_ids
        return [
            new if len(row) <= self._max_length else old
            for new, old, row in zip(noisy, sources, ids, strict=True)
        ]

    @staticmethod
    def _changed(text: str, corpus: MixtureCorpus, key: str) -> str:
        rates = {"casing": corpus.casing_noise, "typos": corpus.typo_noise}
        return corpus.tagged(noisy_text(corpus.untagged(text), key, **rates))
