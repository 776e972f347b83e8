"""Several corpora in one run: weights, stages, and a tag and noise in the sources of each.

Shapes: C corpora, N sentence pairs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from hf_vanilla.data.batching import EMPTY_ROW, TokenBatchSampler
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.data.lines import check_text_file
from hf_vanilla.options import Options, made_section, option

# the fractional parts of the multiples of the golden ratio are spread evenly over [0, 1)
GOLDEN_RATIO = 0x9E3779B97F4A7C15  # times 2^64
NUMBERS_AT_ONCE = 1 << 16
# corpora of one run shuffle differently
SEED_OF_CORPUS = 104_729


@dataclass(frozen=True, kw_only=True)
class MixtureCorpus(Options):
    """One corpus of a mixture."""

    source: str = option(text="file of source sentences, plain or .gz")
    target: str = option(text="file of their translations")
    weight: float = option(1.0, "share of a step's micro-batches, relative to others", above=0)
    first_step: int = option(1, "optimizer step in which it is used first", at_least=1)
    last_step: int | None = option(None, "step in which it is used last; default: to the end")
    tag: str | None = option(None, "token in front of each source")
    casing_noise: float = option(
        0.0, "probability that the casing of a source is changed", at_least=0, below=1
    )
    typo_noise: float = option(
        0.0, "probability of a typing error per letter of a source", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tag is not None and self.tag.split() != [self.tag]:
            raise ValueError(f"tag={self.tag!r}: give a word, such as <bt>")
        first, last = self.first_step, self.last_step
        if last is not None and last < first:
            raise ValueError(f"last_step={last}: give a step from first_step={first}")

    @property
    def is_noisy(self) -> bool:
        """Whether its sources are changed anew at each visit."""
        return bool(self.casing_noise or self.typo_noise)

    def tagged(self, source: str) -> str:
        """A source with the tag in front; a blank one stays blank, so that its pair is dropped."""
        return f"{self.tag} {source}" if self.tag and source.strip() else source


def read_mixture(entries: list[dict[str, Any]]) -> tuple[MixtureCorpus, ...]:
    """The corpora of a recipe's `mixture`.

    Args:
        entries: each has the fields of `MixtureCorpus`.

    Raises:
        ValueError: a key is unknown or missing, or a value impossible.
    """
    if not entries:
        raise ValueError("mixture: give a list of corpora, each with source and target")
    return tuple(
        made_section(MixtureCorpus, entry, f"mixture.{number}")
        for number, entry in enumerate(entries, start=1)
    )


def check_stages(corpora: Sequence[MixtureCorpus], max_steps: int) -> None:
    """Check that each corpus is used, and that each step has one.

    Raises:
        ValueError: a corpus begins after the last step, or a step has no corpus.
    """
    if not corpora:
        return
    for corpus in corpora:
        if corpus.first_step > max_steps:
            raise ValueError(
                f"mixture: first_step={corpus.first_step} of {corpus.source} is after the last "
                f"step, max_steps={max_steps}: lower it, or leave the corpus out"
            )
    for first, _ in pairwise(_boundaries(corpora, max_steps)):
        if not any(_is_used(corpus, first) for corpus in corpora):
            raise ValueError(f"mixture: step {first} has no corpus: change first_step or last_step")


def _boundaries(corpora: Sequence[MixtureCorpus], max_steps: int) -> list[int]:
    """First steps of the stages, and the step after the last."""
    firsts = {1, *(corpus.first_step for corpus in corpora)}
    firsts |= {corpus.last_step + 1 for corpus in corpora if corpus.last_step is not None}
    return [*sorted(step for step in firsts if step <= max_steps), max_steps + 1]


def _is_used(corpus: MixtureCorpus, step: int) -> bool:
    return corpus.first_step <= step and (corpus.last_step is None or step <= corpus.last_step)


# --- text ----------------------------------------------------------------------------------------


def mixture_pairs(corpora: Sequence[MixtureCorpus]) -> list[Dataset]:
    """Rows of `source` and `target` of each corpus, without tags.

    Raises:
        ValueError: two files have different numbers of lines, or are not UTF-8.
        OSError: a file is missing or cannot be read.
    """
    for corpus in corpora:  # all of them before the first is read
        for file in (corpus.source, corpus.target):
            check_text_file(file)
    return [pairs_from_files(corpus.source, corpus.target) for corpus in corpora]


def tagged_pairs(corpora: Sequence[MixtureCorpus], pairs: Sequence[Dataset]) -> Dataset:
    """All rows in one dataset, corpus after corpus, with the tags in front of the sources."""
    tagged = [
        rows.map(
            lambda batch, corpus: {"source": [corpus.tagged(text) for text in batch["source"]]},
            fn_kwargs={"corpus": corpus},
            batched=True,
            desc="Tags",
        )
        if corpus.tag
        else rows
        for corpus, rows in zip(corpora, pairs, strict=True)
    ]
    return concatenate_datasets(tagged)


def add_tags(tokenizer: PreTrainedTokenizerBase, corpora: Sequence[MixtureCorpus]) -> None:
    """Add the tags to a new vocabulary; a space after a tag belongs to it."""
    tags = dict.fromkeys(corpus.tag for corpus in corpora if corpus.tag)
    # not special: the package's tokenizers read special tokens in a text as plain characters
    tokenizer.add_tokens([AddedToken(tag, rstrip=True, special=False) for tag in tags])


def check_tags(tokenizer: PreTrainedTokenizerBase, corpora: Sequence[MixtureCorpus]) -> None:
    """Check that each tag is one token, and not the unknown one.

    Raises:
        ValueError: it is not in the vocabulary.
    """
    for tag in dict.fromkeys(corpus.tag for corpus in corpora if corpus.tag):
        ids = tokenizer(tag, add_special_tokens=False).input_ids
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            raise ValueError(
                f"mixture: tag={tag!r} is not in the vocabulary of the tokenizer: add it by "
                "tokenizer.add_tokens, or leave tokenizer out to train a new one"
            )


def first_rows(sizes: Sequence[int], kept: np.ndarray | None) -> np.ndarray:
    """Where each corpus begins among the rows that were kept.

    Args:
        sizes: rows of each corpus.
        kept: `(N,)` number of each kept row in the whole text; None: all were kept.

    Returns:
        `(C + 1,)` rows of corpus c are `first[c]` to `first[c + 1] - 1`.
    """
    first = np.concatenate(([0], np.cumsum(sizes)))
    return first if kept is None else np.searchsorted(kept, first)


# --- order ---------------------------------------------------------------------------------------


class MixtureOrder:
    """Micro-batches of several corpora; each micro-batch has rows of one corpus.

    Of the micro-batches of a stage, each corpus has a share by its weight, spread evenly. A corpus
    goes through its own epochs, without a gap, also where it pauses for a stage. Which rows form
    micro-batch i is a function of seed and i.

    Args:
        corpora: their weights and stages.
        samplers: batches of each.
        firsts: `(C,)` row at which each corpus begins.
        per_step: micro-batches of an optimizer step.
        max_steps: of the run.
        seed: of the run.
    """

    def __init__(
        self,
        corpora: Sequence[MixtureCorpus],
        samplers: Sequence[TokenBatchSampler],
        firsts: Sequence[int],
        *,
        per_step: int,
        max_steps: int,
        seed: int,
    ) -> None:
        self._corpora, self._samplers, self._firsts = corpora, samplers, list(firsts)
        self._seed = seed
        steps = _boundaries(corpora, max_steps)[:-1]
        self._begins = (np.array(steps, dtype=np.int64) - 1) * per_step
        weights = [[c.weight if _is_used(c, step) else 0.0 for c in corpora] for step in steps]
        totals = np.cumsum(weights, axis=1)  # (stages, C)
        self._ends = totals / totals[:, -1:]
        # micro-batches of each corpus before each block
        self._counts = [np.zeros(len(corpora), dtype=np.int64)]
        self._latest: tuple[int, np.ndarray] | None = None

    def __getitem__(self, number: int) -> list[int]:
        """Row numbers of micro-batch `number` of the run."""
        block, place = divmod(number, NUMBERS_AT_ONCE)
        while len(self._counts) <= block:
            counts = np.bincount(self._chosen(len(self._counts) - 1), minlength=len(self._corpora))
            self._counts.append(self._counts[-1] + counts)
        chosen = self._chosen(block)
        corpus = int(chosen[place])
        visit = int(self._counts[block][corpus]) + int((chosen[:place] == corpus).sum())
        sampler, first = self._samplers[corpus], self._firsts[corpus]
        return [row if row == EMPTY_ROW else first + row for row in sampler[visit]]

    def _chosen(self, block: int) -> np.ndarray:
        """The corpus of each micro-batch of a block."""
        if self._latest is None or self._latest[0] != block:
            first = block * NUMBERS_AT_ONCE
            self._latest = block, self.corpora_of(np.arange(first, first + NUMBERS_AT_ONCE))
        return self._latest[1]

    def corpora_of(self, numbers: np.ndarray) -> np.ndarray:
        """The number of the corpus of each micro-batch.

        Args:
            numbers: of the micro-batches.
        """
        multiples = (numbers.astype(np.uint64) + np.uint64(self._seed)) * np.uint64(GOLDEN_RATIO)
        # the upper 53 bits, which a float64 holds exactly
        places = (multiples >> np.uint64(11)).astype(np.float64) / (1 << 53)
        stages = np.searchsorted(self._begins, numbers, side="right") - 1
        return (places[:, None] >= self._ends[stages]).sum(axis=1)


# --- noise of the sources -------------------------------------------------------------------------


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
        >>> from hf_vanilla.text.mixture import noisy_text
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


@dataclass(frozen=True)
class SourceNoise:
    """Changes the sources of a mixture anew at each visit.

    Attributes:
        corpora: their rates of noise.
        firsts: `(C + 1,)` as of `first_rows`.
        tokenizer: of the run.
        max_length: a text that would have more tokens stays as it is.
    """

    corpora: Sequence[MixtureCorpus]
    firsts: np.ndarray
    tokenizer: PreTrainedTokenizerBase
    max_length: int

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
        places = np.searchsorted(self.firsts, rows, side="right") - 1
        noisy = []
        for text, place, key in zip(sources, places.tolist(), keys, strict=True):
            corpus = self.corpora[place]
            rates = {"casing": corpus.casing_noise, "typos": corpus.typo_noise}
            plain = text.removeprefix(f"{corpus.tag} ") if corpus.tag else text
            noisy.append(corpus.tagged(noisy_text(plain, str(key), **rates)))
        ids = self.tokenizer(noisy, verbose=False, return_attention_mask=False).input_ids
        return [
            new if len(row) <= self.max_length else old
            for new, old, row in zip(noisy, sources, ids, strict=True)
        ]
