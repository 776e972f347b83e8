"""What every layer and head looked at while one sentence was translated (3.2.3), as data.

Shapes: S source, T target, H heads.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import decoders
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

START = "<start>"
SPACE, LINE_END = "␣", "↵"


@dataclass(frozen=True)
class Attentions:
    """The three attentions of one translation, all rows of which sum to 1.

    Attributes:
        source: S tokens as a reader knows them, `</s>` included.
        target: T tokens of the translation, `</s>` included.
        read: T tokens that the decoder read: `<start>`, then `target` without its last. While it
            wrote `target[t]`, the latest it had read was `read[t]`.
        encoder: `(layers, H, S, S)`; row s is what source token s looked at.
        decoder: `(layers, H, T, T)`; row t belongs to the step that wrote `target[t]`, columns are
            those of `read`. What lies ahead, right of the diagonal, is 0.
        cross: `(layers, H, T, S)`; row t belongs to the step that wrote `target[t]`.
    """

    source: list[str]
    target: list[str]
    read: list[str]
    encoder: Tensor
    decoder: Tensor
    cross: Tensor


def attentions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    *,
    translation: str | Sequence[int] | None = None,
) -> Attentions:
    """Translate a sentence, or take a translation, and read all weights of attention.

    The model itself is left as it is, so that any number of threads may use it meanwhile.

    Args:
        model: an encoder-decoder of any attention implementation.
        tokenizer: its tokenizer.
        sentence: source text.
        translation: what the decoder is made to write: text, or its ids as `generate` returns
            them, without the start token. None: what the model writes by its own decoding.

    Raises:
        ValueError: the sentence or the translation is blank, the sentence is longer than the model
            reads, or the model does not translate.
    """
    if not model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(
            f"{type(model).__name__} does not translate: it has no encoder and decoder"
        )
    if not sentence.strip():
        raise ValueError("the sentence is blank: there is nothing to look at")
    inputs = tokenizer(sentence, return_tensors="pt", verbose=False).to(model.device)
    length, limit = inputs.input_ids.shape[1], tokenizer.model_max_length
    if length > limit:
        raise ValueError(
            f"the sentence has {length} tokens, and the model reads {limit}: shorten it"
        )
    if translation is None:
        written = model.generate(**inputs)[0].tolist()
    else:
        written = [_start_token_id(model), *_target_ids(tokenizer, translation)]
    twin = _eager_twin(model)
    with torch.inference_mode():
        read = torch.tensor([written[:-1]], device=model.device)
        outputs = twin(**inputs, decoder_input_ids=read, output_attentions=True, use_cache=False)
    target = readable_tokens(tokenizer, written[1:])
    return Attentions(
        source=readable_tokens(tokenizer, inputs.input_ids[0].tolist(), is_source=True),
        target=target,
        read=[START, *target[:-1]],
        encoder=_stacked(outputs.encoder_attentions),
        decoder=_stacked(outputs.decoder_attentions),
        cross=_stacked(outputs.cross_attentions),
    )


def _start_token_id(model: PreTrainedModel) -> int:
    start = model.generation_config.decoder_start_token_id
    return model.config.decoder_start_token_id if start is None else start


def _target_ids(
    tokenizer: PreTrainedTokenizerBase, translation: str | Sequence[int]
) -> Sequence[int]:
    if isinstance(translation, str):
        is_blank = not translation.strip()
        ids = tokenizer(text_target=translation).input_ids
    else:
        ids = list(translation)
        is_blank = not ids
    if is_blank:
        raise ValueError("the translation is blank: there is nothing to look at")
    return ids


def _eager_twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in modules of their own, whose attention keeps what it computed.

    Other implementations keep no weights, and to switch the model itself would switch it for every
    thread that is using it.
    """
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, tensors).eval()  # what the memo holds is kept, not copied
    twin.set_attn_implementation("eager")
    return twin


def _stacked(layers: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(layers)[:, 0].float().cpu()


def readable_tokens(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, is_source: bool = False
) -> list[str]:
    """Each token as text; spaces visible, bytes of a split character in hexadecimal.

    Args:
        tokenizer: of one vocabulary or of one for each side.
        ids: of one side.
        is_source: they are ids of the source; else of the target.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_bytes = isinstance(getattr(backend, "decoder", None), decoders.ByteLevel)
    word_end = getattr(getattr(backend, "model", None), "end_of_word_suffix", None)
    special = set(tokenizer.all_special_tokens)
    texts = []
    for piece in _pieces(tokenizer, ids, is_source=is_source):
        if piece in special:
            texts.append(piece)
            continue
        text = _text_of_bytes(piece) if is_bytes else piece.replace("▁", " ")
        if word_end:  # a piece that its word goes beyond is marked as in fairseq's dictionaries
            text = text.removesuffix(word_end) if text.endswith(word_end) else f"{text}@@"
        texts.append(_visible(text))
    return texts


def _pieces(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, is_source: bool
) -> list[str]:
    """Entries of the vocabulary of one side."""
    if is_source and getattr(tokenizer, "separate_vocabs", False):  # MarianTokenizer
        words = {number: word for word, number in tokenizer.get_src_vocab().items()}
        return [words[number] for number in ids]
    own = None if is_source else tokenizer.init_kwargs.get("target_pieces")
    return tokenizer.convert_ids_to_tokens(list(ids)) if own is None else [own[i] for i in ids]


def _text_of_bytes(piece: str) -> str:
    """A piece of byte-level BPE as text; bytes that are no whole character as their numbers."""
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    if not set(piece) <= alphabet.keys():
        return piece
    text = bytes(alphabet[c] for c in piece).decode("utf-8", "surrogateescape")
    return text.translate({0xDC00 + byte: f"⟨{byte:02X}⟩" for byte in range(0x80, 0x100)})


def _visible(text: str) -> str:
    """Spaces and line ends as signs, other characters that cannot be seen as their numbers."""
    text = text.replace(" ", SPACE).replace("\n", LINE_END)
    return "".join(c if c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in text)
