# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The tokenizers: one byte-level BPE for both languages (5.1), and that of models from fairseq."""

import importlib
import re
import unicodedata
from functools import cache, cached_property
from typing import Any

from transformers import TokenizersBackend

# what replace-unicode-punctuation.perl of Moses rewrites
SPACED_STOPS = re.compile(r"[\u3002\uff0e]\s*")
PUNCTUATION = str.maketrans(
    "，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％",  # noqa: RUF001 - these are meant
    ',,""::?"")!(;1""032569784~\'-<>[]%',
) | {ord("…"): "..."}


class VanillaTokenizer(TokenizersBackend):
    """One vocabulary for source and target; every sentence ends in `</s>`.

    Byte-level BPE has no unknown token, and any Unicode text decodes back to itself, with single
    spaces for its white space. Make one with `hf_vanilla.train_tokenizer`; load one with
    `AutoTokenizer.from_pretrained`.

    There is deliberately no `__init__`: transformers rebuilds a tokenizer whose class has one from
    its vocabulary and merges, losing everything else that `tokenizer.json` says.

    Examples:
        >>> from hf_vanilla import train_tokenizer
        >>> tokenizer = train_tokenizer(["ein Haus", "a house"], vocab_size=270)
        >>> tokenizer.decode(tokenizer("ein Haus").input_ids, skip_special_tokens=True)
        'ein Haus'
    """

    model_input_names = ["input_ids", "attention_mask"]


class VanillaFairseqTokenizer(TokenizersBackend):
    """Raw text to the ids of a fairseq dictionary and back; one vocabulary or one per side.

    The backend cuts words into pieces. Its vocabulary also has intermediate pieces of merges, which
    are in no dictionary. Its first entries are the source dictionary; every
    other piece is `<unk>` there. `text_target=` looks up the target dictionary, and decoding reads
    target ids. Made by `hf_vanilla.convert`; load it with `AutoTokenizer.from_pretrained`.

    There is deliberately no `__init__`: transformers rebuilds a tokenizer whose class has one from
    its vocabulary and merges. The settings are in `tokenizer_config.json`:
    `source_vocab_size`, `target_pieces` (None: both sides share the dictionary), `source_lang`,
    `target_lang`, `use_moses`, `do_lower_case` and, of FSMT, `normalize_punctuation`.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from hf_vanilla import VanillaFairseqTokenizer
        >>> words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5}
        >>> backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        >>> backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> tokenizer = VanillaFairseqTokenizer(
        ...     tokenizer_object=backend, source_vocab_size=5, unk_token="<unk>")
        >>> tokenizer("a b").input_ids
        [4, 3]
    """

    model_input_names = ["input_ids", "attention_mask"]
    is_for_target = False

    @property
    def vocab_size(self) -> int:
        """Entries of the source dictionary."""
        return int(self.init_kwargs["source_vocab_size"])

    def __len__(self) -> int:
        """Entries of the source dictionary, so that `resize_token_embeddings` finds its size."""
        return self.vocab_size

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens that a dictionary has, so that they are not split; loading does so too.

        Raises:
            ValueError: neither dictionary has a token, so the model has no embedding for it.
        """
        tokens = new_tokens if isinstance(new_tokens, list | tuple) else [new_tokens]
        new = [str(token) for token in tokens if self._tokenizer.token_to_id(str(token)) is None]
        if new:
            raise ValueError(
                f"{', '.join(new)}: a fairseq dictionary is fixed: take a rare word of it as a tag"
            )
        return super().add_tokens(new_tokens, special_tokens)

    @cached_property
    def _pieces_of_target(self) -> list[int]:
        """Backend piece of each target id."""
        pieces = self.init_kwargs.get("target_pieces")
        if pieces is None:
            return list(range(self.vocab_size))
        return [self._tokenizer.token_to_id(piece) for piece in pieces]

    @cached_property
    def _ids_of_pieces(self) -> list[list[int]]:
        """Source ids and target ids of all backend pieces; special tokens in a text are unknown."""
        tables, special = [], self.all_special_ids
        for pieces in (range(self.vocab_size), self._pieces_of_target):
            tables.append([self.unk_token_id] * self._tokenizer.get_vocab_size())
            for number, piece in enumerate(pieces):
                if number not in special:
                    tables[-1][piece] = number
        return tables

    def _switch_to_input_mode(self) -> None:
        self.is_for_target = False

    def _switch_to_target_mode(self) -> None:
        self.is_for_target = True

    def _encode_plus(self, text: Any, text_pair: Any = None, **kwargs: Any) -> Any:
        if not kwargs.get("is_split_into_words"):
            text = self._prepared(text)
            text_pair = None if text_pair is None else self._prepared(text_pair)
        return super()._encode_plus(text, text_pair, **kwargs)

    def _convert_encoding(self, *args: Any, **kwargs: Any) -> Any:
        fields, encodings = super()._convert_encoding(*args, **kwargs)
        table = self._ids_of_pieces[self.is_for_target]
        masks = [encoding.special_tokens_mask for encoding in encodings]
        fields["input_ids"] = [
            [i if is_added else table[i] for i, is_added in zip(row, added, strict=True)]
            for row, added in zip(fields["input_ids"], masks, strict=True)
        ]
        return fields, encodings

    def _decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        text = super()._decode([self._pieces_of_target[i] for i in ids], *args, **kwargs).strip()
        if not self.init_kwargs.get("use_moses"):
            return text
        words = _moses_tool("MosesDetokenizer", self.init_kwargs["target_lang"])
        return words.detokenize(text.split())

    def _prepared(self, text: Any) -> Any:
        """Text, or a list of texts, as the pieces expect it: tokenized, lowercased."""
        if not isinstance(text, str):
            return [self._prepared(part) for part in text]
        if self.init_kwargs.get("use_moses"):
            language = self.init_kwargs["target_lang" if self.is_for_target else "source_lang"]
            if self.init_kwargs.get("normalize_punctuation"):
                # as Moses' scripts do, and without invisible characters
                text = SPACED_STOPS.sub(". ", text).translate(PUNCTUATION)
                text = _moses_tool("MosesPunctNormalizer", language).normalize(text)
                text = "".join(c for c in text if not unicodedata.category(c).startswith("C"))
            words = _moses_tool("MosesTokenizer", language)
            # as fairseq calls it
            text = words.tokenize(text, aggressive_dash_splits=True, return_str=True, escape=True)
        return text.lower() if self.init_kwargs.get("do_lower_case") else text


@cache
def _moses_tool(name: str, language: str) -> Any:
    try:
        # here, because transformers requires every module that the top of the file imports
        sacremoses = importlib.import_module("sacremoses")
    except ImportError:
        raise ImportError("this tokenizer splits words as Moses: pip install sacremoses") from None
    return getattr(sacremoses, name)(lang=language)
