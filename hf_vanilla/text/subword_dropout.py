"""BPE-dropout: another segmentation of each word at each visit (Provilkov et al. 2020).

The dropout of `tokenizers` has no seed, so the merges are done here. What is drawn depends on the
seed of the run and of the micro-batch alone.
"""

import heapq
import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise

import torch
from tokenizers import Encoding, models
from transformers import PreTrainedTokenizerBase

# segmentations drawn for each word; each visit of the word chooses one of them
DRAWS = 64
CACHED_DRAWS = 1 << 20


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
        >>> from hf_vanilla.text.subword_dropout import SubwordDropout
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
        rows = [list(self._words(encoded[number])) for number in range(len(texts))]
        choices = torch.randint(DRAWS, (sum(map(len, rows)),), generator=generator).tolist()
        found, first = [], 0
        for number, words in enumerate(rows):
            drawn = choices[first : first + len(words)]
            first += len(words)
            ids = [i for word, k in zip(words, drawn, strict=True) for i in self._draw(word, k)]
            usual = encoded.input_ids[number]
            found.append(ids if len(ids) <= self._max_length else usual)
        return found

    def _words(self, tokens: Encoding) -> Iterator[tuple[int, ...]]:
        """The ids of each word of a text; special tokens are words."""
        for _, word in groupby(zip(tokens.ids, tokens.word_ids, strict=True), lambda pair: pair[1]):
            yield tuple(token for token, _ in word)

    def _segmentation(self, word: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Draw number `number` of a word."""
        symbols = self._symbols(word)
        if symbols is None or len(symbols) == 1:
            return word
        draw = random.Random(f"{self._seed} {number} {word}")
        return tuple(self._ids[piece] for piece in self._merged(symbols, draw))

    def _symbols(self, word: tuple[int, ...]) -> list[str] | None:
        """The symbols from which merges build a word; None for an unknown or a special token."""
        text = "".join(self._pieces.get(token, "") for token in word)
        stem = text.removesuffix(self._suffix) if self._suffix else text
        symbols = list(stem)
        if self._suffix and text != stem and symbols:
            symbols[-1] += self._suffix
        whole = self._merged(symbols, None)
        return symbols if [self._ids.get(piece) for piece in whole] == list(word) else None

    def _merged(self, symbols: Sequence[str], draw: random.Random | None) -> list[str]:
        """The pieces of a word; without `draw` no merge is left out."""
        pieces = list(symbols)
        while True:
            ranked = [
                (rank, place)
                for place, pair in enumerate(pairwise(pieces))
                if (rank := self._ranks.get(pair)) is not None
            ]
            heapq.heapify(ranked)
            while ranked and draw is not None and draw.random() < self._rate:
                heapq.heappop(ranked)
            if not ranked:
                return pieces
            _, place = ranked[0]
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
