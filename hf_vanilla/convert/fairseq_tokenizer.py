"""Tokenizers of other toolkits with a `tokenizer.json`, from BPE codes or SentencePiece.

They have the token ids of fairseq dictionaries, or those of a MarianTokenizer.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import TokenizersBackend

from hf_vanilla.data.lines import read_lines
from hf_vanilla.models.tokenization_vanilla import VanillaFairseqTokenizer
from hf_vanilla.options import needs

from .checkpoint_files import pieces_by_id

# ids 0 to 3 of every dictionary, not listed in its file
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
UNKNOWN_ID = SPECIAL_TOKENS.index("<unk>")
# fairseq marks pieces inside a word, the backend marks pieces at the end of a word
CONTINUED, WORD_END = "@@", "</w>"
SENTENCEPIECE_SUFFIX, SPACE = ".model", "▁"
UNIGRAM, BPE = 1, 2
NORMAL, USER_DEFINED, BYTE = 1, 4, 6
# spaces at the ends of a text; other white space stays. Also an expression of JavaScript
ENDS = r"(?<![\s\S]) +| +(?![\s\S])"
UNKNOWN_PENALTY = 10.0  # as in SentencePiece: below the least likely piece


# tokens of source and target, in the order of their ids, special tokens first
Dictionaries = Sequence[list[str]]


def read_dictionary(path: str | Path) -> list[str]:
    """The tokens of a `dict.LANG.txt` in the order of their ids, the four special ones first.

    Raises:
        ValueError: a line is not a token and its count, or a token occurs twice.
        OSError: the file cannot be read.
    """
    tokens = dict.fromkeys(SPECIAL_TOKENS)
    for number, line in enumerate(read_lines(path), start=1):
        token, space, count = line.rstrip().rpartition(" ")
        if not space or not count.isdecimal():
            raise ValueError(
                f"{path}, line {number}: {line!r} is not a token and its count; "
                "give the dict.LANG.txt of the checkpoint"
            )
        if token in tokens:
            raise ValueError(f"{path}, line {number}: {token!r} occurs a second time")
        tokens[token] = None
    return list(tokens)


def read_codes(path: str | Path) -> list[tuple[str, str]]:
    """The merges of a codes file of subword-nmt (0.2) or fastBPE, in order.

    Raises:
        ValueError: it is a file of neither, or has no merges.
        OSError: the file cannot be read.
    """
    lines = [line.strip("\r\n ") for line in read_lines(path)]
    is_subword_nmt = bool(lines) and lines[0].startswith("#version:")
    if is_subword_nmt and lines[0].split(":")[1].strip() != "0.2":
        raise ValueError(
            f"{path} begins with {lines[0]!r}: only version 0.2 is read, "
            "earlier versions use a separate piece for the end of a word"
        )
    width = 2 if is_subword_nmt else 3
    # of a pair that occurs twice, the first counts
    merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines, start=1):
        fields = line.split(" ")
        if (number == 1 and is_subword_nmt) or not line:
            continue
        if len(fields) != width or (width == 3 and not fields[2].isdecimal()):
            raise ValueError(
                f"{path}, line {number}: {line!r} is not a merge; codes are subword-nmt's "
                "('#version: 0.2', then two pieces per line) or fastBPE's (two pieces and a count)"
            )
        merges.setdefault((fields[0], fields[1]))
    if not merges:
        raise ValueError(f"{path} has no merges: get the codes of the checkpoint again")
    return list(merges)


def bpe_pieces(tokens: list[str]) -> list[str]:
    """Dictionary tokens as the backend writes them: `x@@` as `x`, and `x` as `x</w>`."""
    rest = tokens[len(SPECIAL_TOKENS) :]
    return tokens[: len(SPECIAL_TOKENS)] + [
        token.removesuffix(CONTINUED)
        if token.endswith(CONTINUED) and token != CONTINUED
        else token + WORD_END
        for token in rest
    ]


def sentencepiece_backend(
    path: str | Path, dictionaries: Dictionaries, *, has_others: bool = True
) -> Tokenizer:
    """A SentencePiece model as a backend whose first entries are the source dictionary.

    Args:
        path: of the SentencePiece model.
        dictionaries: of both sides.
        has_others: its pieces that no dictionary has follow; False: they are split further.

    Raises:
        ImportError: sentencepiece or protobuf is missing.
        ValueError: it is no SentencePiece model, or cannot be converted exactly.
        OSError: the file cannot be read.
    """
    proto = _read_proto(path)
    kind = proto.trainer_spec.model_type
    scores = {p.piece: p.score for p in proto.pieces if p.type in (NORMAL, BYTE)}
    if not has_others:
        scores = {piece: scores[piece] for piece in dictionaries[0] if piece in scores}
    vocabulary = _vocabulary(dictionaries, scores)
    unknown_token = SPECIAL_TOKENS[UNKNOWN_ID]
    unknown_id, has_bytes = vocabulary[unknown_token], proto.trainer_spec.byte_fallback
    if kind == UNIGRAM:
        # entries that are only in the dictionary get the score of their characters as unknown
        # ones, so that pieces of the model always win
        unknown = min(scores.values(), default=0.0) - UNKNOWN_PENALTY
        rows = [(piece, scores.get(piece, unknown * len(piece))) for piece in vocabulary]
        model: models.Model = models.Unigram(rows, unk_id=unknown_id, byte_fallback=has_bytes)
    else:
        model = models.BPE(
            vocab=vocabulary,
            merges=[
                (piece[:cut], piece[cut:])
                for piece in sorted(scores, key=lambda piece: -scores[piece])
                for cut in range(1, len(piece))
                if piece[:cut] in scores and piece[cut:] in scores
            ],
            unk_token=unknown_token,
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    backend = Tokenizer(model)
    backend.normalizer = _normalizer(proto.normalizer_spec)
    of_bytes = [decoders.ByteFallback()] if has_bytes else []
    steps = [decoders.Replace(SPACE, " "), *of_bytes, decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    return backend


def build_tokenizer(
    pieces: str | Path, dictionaries: Dictionaries, **settings: Any
) -> VanillaFairseqTokenizer:
    """The tokenizer of a fairseq model.

    Args:
        pieces: BPE codes, or a SentencePiece model, whose name ends in `.model`.
        dictionaries: of both sides.
        **settings: of `VanillaFairseqTokenizer`: languages, `use_moses`, `model_max_length`, ...

    Raises:
        ImportError: a library that the format needs is missing.
        ValueError: the file is not of the format of its name, or cannot be converted exactly.
        OSError: a file cannot be read.
    """
    if Path(pieces).suffix == SENTENCEPIECE_SUFFIX:
        return _tokenizer(sentencepiece_backend(pieces, dictionaries), dictionaries, settings)
    as_pieces = [bpe_pieces(tokens) for tokens in dictionaries]
    return tokenizer_of_merges(read_codes(pieces), as_pieces, **settings)


def tokenizer_of_merges(
    merges: list[tuple[str, str]], dictionaries: Dictionaries, **settings: Any
) -> VanillaFairseqTokenizer:
    """The tokenizer of a model with BPE codes.

    Args:
        merges: in order.
        dictionaries: of both sides, as `bpe_pieces` writes tokens.
        **settings: as for `build_tokenizer`.
    """
    of_merges = (part for merge in merges for part in (*merge, "".join(merge)))
    backend = Tokenizer(
        models.BPE(
            vocab=_vocabulary(dictionaries, of_merges),
            merges=merges,
            unk_token=SPECIAL_TOKENS[UNKNOWN_ID],
            end_of_word_suffix=WORD_END,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=WORD_END)
    return _tokenizer(backend, dictionaries, settings)


def _tokenizer(
    backend: Tokenizer, dictionaries: Dictionaries, settings: dict[str, Any]
) -> VanillaFairseqTokenizer:
    """The backend with ids per side."""
    begin, pad, eos, unknown = SPECIAL_TOKENS
    source, target = dictionaries
    end = (eos, SPECIAL_TOKENS.index(eos))
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A $B {eos}", special_tokens=[end]
    )
    return VanillaFairseqTokenizer(
        tokenizer_object=backend,
        pad_token=pad,
        eos_token=eos,
        unk_token=unknown,
        bos_token=begin,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "</s>" typed in a text is not special
        source_vocab_size=len(source),
        target_pieces=None if target == source else target,
        **settings,
    )


def with_tokenizer_json(tokenizer: Any) -> TokenizersBackend:
    """The MarianTokenizer of OPUS-MT as one that `tokenizer.json` describes, with the same ids.

    Three cases differ:

    - a language code such as `>>fra<<` inside a text: text for MarianTokenizer, a code here;
    - a run of characters that only pieces of the target have: one unknown token there, pieces here;
    - a piece that the vocabulary lacks: unknown there, split further here.

    Args:
        tokenizer: one vocabulary for source and target.

    Raises:
        ImportError: sentencepiece or protobuf is missing.
        ValueError: its SentencePiece model cannot be converted exactly, or ids are left out.
    """
    path, ids = Path(tokenizer.spm_files[0]), tokenizer.encoder
    pieces = pieces_by_id(path.with_name("vocab.json"), ids, len(ids))
    backend = sentencepiece_backend(path, (pieces, pieces), has_others=False)
    end = tokenizer.eos_token
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    strip = decoders.Replace(Regex("^ +| +$"), "")
    backend.decoder = decoders.Sequence([backend.decoder, strip])
    codes, added = tokenizer.supported_language_codes, tokenizer.added_tokens_decoder
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    for _, token in sorted(added.items()):
        if token.content not in ids:
            one = AddedToken(token.content, normalized=False, special=token.special)
            backend.add_tokens([one])
    return TokenizersBackend(
        tokenizer_object=backend,
        eos_token=end,
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=False,
    )


# --- inside ------------------------------------------------------------------------------------


def _vocabulary(dictionaries: Dictionaries, others: Iterable[str]) -> dict[str, int]:
    """Numbers of all pieces; the first ones are the ids of the source dictionary.

    Raises:
        ValueError: two tokens of the source are the same piece.
    """
    pieces, target = dictionaries
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if len(numbers) < len(pieces):
        twice = sorted({piece for piece in pieces if pieces.count(piece) > 1})
        raise ValueError(f"two tokens of the dictionary are the same piece: {', '.join(twice)}")
    for piece in (*target, *others):
        numbers.setdefault(piece, len(numbers))
    return numbers


def _normalizer(spec: Any) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(ENDS), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    if spec.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _read_proto(path: str | Path) -> Any:
    with needs(f"{path} is a SentencePiece model", "convert"):
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as protocol
    proto = protocol.ModelProto()
    try:
        proto.ParseFromString(Path(path).read_bytes())
    except DecodeError:
        raise ValueError(f"{path} is incomplete or no SentencePiece model") from None
    own = [p.piece for p in proto.pieces if p.type == USER_DEFINED]
    problems = [
        *(["it has no pieces"] if not proto.pieces else []),
        *(["it is neither BPE nor Unigram"] if proto.trainer_spec.model_type > BPE else []),
        *(["its pieces end in spaces"] if proto.trainer_spec.treat_whitespace_as_suffix else []),
        *([f"it has user-defined pieces ({', '.join(own[:5])})"] if own else []),
    ]
    if problems:
        raise ValueError(f"{path} cannot be converted exactly: {'; '.join(problems)}")
    return proto
