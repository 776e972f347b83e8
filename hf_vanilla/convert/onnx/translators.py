"""Export a translator to ONNX: two graphs, tokenizer, generation config, and its search.

One graph is the encoder, the other one step of the decoder for all beams. Both call the model's own
layers. As in `models/search_vanilla_decoder.py`, the beams of a sentence are queries of one row of
the KV cache, so no step reorders or copies the cache of a beam.

Shapes: B sentences, n beams, S source, C slots of the cache, D `d_model`, H heads, K head width,
V vocabulary.
"""

import copy
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    GenerationConfig,
    PreTrainedTokenizerBase,
    TokenizersBackend,
)
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

import hf_vanilla.text
from hf_vanilla.convert.checkpoint_files import load_encoder_decoder
from hf_vanilla.convert.fairseq_tokenizer import with_tokenizer_json
from hf_vanilla.convert.weight_names import refuse
from hf_vanilla.models.attention_vanilla import split_heads
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.text.attentions import start_token_id
from hf_vanilla.text.engines import CTRANSLATE2_DECODING

from .files import ANY, Input, Inputs, write_graph

RUNNER = Path(hf_vanilla.text.__file__).with_name("onnx_search.py")  # without ONNX Runtime
LOWEST = -1e9  # added to the score of a slot that may not be attended to
PLAIN = "plain"
# fields of a generation config that translate.py reads, or that do not concern its search
DECODING = CTRANSLATE2_DECODING - {"min_length", "min_new_tokens", "no_repeat_ngram_size"}
DECODING |= {"forced_eos_token_id"}


def export_translator(name: str, folder: Path, dtype: str) -> None:
    """Write encoder.onnx, decoder.onnx, tokenizer, generation config and translate.py.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.

    Raises:
        ValueError: the export cannot express the model; the message names all reasons.
    """
    model, tokenizer = load_for_export(name)
    decoding = written_decoding(model)
    write_encoder(model, folder / "encoder.onnx", dtype)
    _write_decoder(model, folder / "decoder.onnx", dtype)
    if model.config.position_embedding_type == "learned":
        longest = model.config.max_position_embeddings
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
        decoding.max_length = min(decoding.max_length or longest, longest)
    decoding.save_pretrained(folder)
    # padding and truncation of earlier calls would be saved too; translate.py does both itself
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(folder)
    shutil.copy(RUNNER, folder / "translate.py")


def load_for_export(name: str) -> tuple[VanillaForConditionalGeneration, PreTrainedTokenizerBase]:
    """A model in float32 on the CPU with the attention of the graphs, and its tokenizer.

    Raises:
        ValueError: it is no translator of this package, is quantized, decodes by settings that
            the exported search does not have, or has a tokenizer with code of its own.
    """
    model, tokenizer = load_encoder_decoder(name)
    if getattr(tokenizer, "separate_vocabs", None) is False:  # MarianTokenizer
        tokenizer = with_tokenizer_json(tokenizer)
    refuse("the export to ONNX (--format ctranslate2 takes more models)", _faults(model, tokenizer))
    model = model.float().eval()
    model.set_attn_implementation(PLAIN)
    return model, tokenizer


def _faults(
    model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> dict[str, bool]:
    """Parts that an exported folder cannot have, for `refuse`."""
    decoding = model.generation_config
    reasons = {
        f"{name}={value!r} of the generation config": name not in DECODING and value is not False
        for name, value in decoding.to_diff_dict().items()
    }
    reasons[f"bad_words_ids={decoding.bad_words_ids} (needed: single tokens)"] = any(
        len(ids) != 1 for ids in decoding.bad_words_ids or []
    )
    for name in ("eos_token_id", "decoder_start_token_id", "forced_eos_token_id"):
        value = getattr(decoding, name)
        value = getattr(model.config, name, None) if value is None else value
        may_be_none = value is None and name == "forced_eos_token_id"
        reasons[f"{name}={value!r} (needed: one id)"] = not (isinstance(value, int) or may_be_none)
    # a tokenizer.json says all about a tokenizer whose class adds no code
    used, methods = type(tokenizer), ("_encode_plus", "_decode", "_convert_encoding")
    reasons[f"a {used.__name__}, whose code is not in tokenizer.json"] = any(
        getattr(used, name, 0) is not getattr(TokenizersBackend, name) for name in methods
    )
    cleans = bool(tokenizer.clean_up_tokenization_spaces)  # by transformers, but for BPE
    kind = type(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None))
    reasons["clean_up_tokenization_spaces=True of the tokenizer"] = cleans and kind is not BPE
    return reasons


def written_decoding(model: VanillaForConditionalGeneration) -> GenerationConfig:
    """The generation config of the folder; ids that are only in the model's config are added."""
    decoding = copy.deepcopy(model.generation_config)
    decoding.decoder_start_token_id = start_token_id(model)
    for name in ("eos_token_id", "pad_token_id"):
        if getattr(decoding, name) is None:
            setattr(decoding, name, getattr(model.config, name))
    limits = ("max_length", "max_new_tokens", "max_tokens_beyond_source")
    if all(getattr(decoding, name, None) is None for name in limits):
        decoding.max_length = GenerationConfig._get_default_generation_params()["max_length"]
    return decoding


def write_encoder(
    model: VanillaForConditionalGeneration, path: Path, dtype: str, *, has_cache: bool = True
) -> None:
    """Write the graph of `EncoderGraph`."""
    ids = torch.ones(2, 5, dtype=torch.long)
    any_rows = {0: ANY, 1: ANY}
    # a clone: one tensor would become one input
    inputs = [("input_ids", ids, any_rows), ("attention_mask", ids.clone(), any_rows)]
    outputs = ["last_hidden_state"]
    if has_cache:
        outputs = ["encoder_hidden_states", *_slots("source", model)]
    write_graph(EncoderGraph(model, has_cache=has_cache), inputs, outputs, path, dtype=dtype)


def _write_decoder(model: VanillaForConditionalGeneration, path: Path, dtype: str) -> None:
    """Write the graph of `DecoderGraph`."""
    decoding = model.generation_config
    forbidden = [ids[0] for ids in decoding.bad_words_ids or []]
    graph = DecoderGraph(model, forbidden, is_renormalized=bool(decoding.renormalize_logits))
    batch, beams, source, slots = 2, 3, 5, 6  # all different: an equal one would be made the same
    inputs: Inputs = [
        ("input_ids", torch.ones(batch, beams, dtype=torch.long), {0: ANY, 1: ANY}),
        ("position", torch.ones(1, dtype=torch.long), {}),
        ("beam_mask", torch.zeros(batch, beams, slots + beams), {0: ANY, 1: ANY, 2: ANY}),
        ("attention_mask", torch.ones(batch, source, dtype=torch.long), {0: ANY, 1: ANY}),
        _cache_inputs("source", model, batch, source),
        _cache_inputs("past", model, batch, slots),
    ]
    outputs = ["log_probs", "tokens", *_slots("present", model)]
    write_graph(graph, inputs, outputs, path, dtype=dtype)


def _slots(name: str, model: VanillaForConditionalGeneration) -> list[str]:
    """Names of keys and values of each layer of the decoder."""
    layers = range(model.config.decoder_layers)
    return [f"{name}_{kind}_{layer}" for layer in layers for kind in ("key", "value")]


def _cache_inputs(
    name: str, model: VanillaForConditionalGeneration, batch: int, slots: int
) -> list[Input]:
    cache = zip(_slots(name, model), empty_cache(model, batch, slots), strict=True)
    return [(part, states, {0: ANY, 2: ANY}) for part, states in cache]


def empty_cache(model: VanillaForConditionalGeneration, batch: int, slots: int) -> list[Tensor]:
    """Zeros as keys and values of each layer of the decoder, `(batch, H, slots, K)`."""
    heads = model.config.decoder_attention_heads
    widths = model.config.head_widths(heads) * model.config.decoder_layers
    return [torch.zeros(batch, heads, slots, width) for width in widths]


# --- graphs -------------------------------------------------------------------------------------


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention (3.2.1) in few operators; the mask is added to the scores."""
    scores = (query * scaling) @ key.transpose(-2, -1)  # (B, H, T, S)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(dim=-1) @ value).transpose(1, 2), None


AttentionInterface.register(PLAIN, plain_attention)


class EncoderGraph(nn.Module):
    """Source ids to states, and to the source's keys and values for each layer of the decoder.

    Args:
        model: of the translator.
        has_cache: False for the states alone.
    """

    def __init__(self, model: VanillaForConditionalGeneration, *, has_cache: bool = True) -> None:
        super().__init__()
        self.encoder: Any = model.model.encoder
        self.layers: Any = model.model.decoder.layers if has_cache else []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Encode `(B, S)` ids with their mask `(B, S)`, 1 = real token.

        Returns:
            States `(B, S, D)`; then of each layer keys and values `(B, H, S, K)`.
        """
        hidden_states = self.encoder.embed(input_ids, None, attention_mask)
        mask = source_mask(attention_mask)
        for layer in self.encoder.layers:
            hidden_states = layer(hidden_states, mask)
        hidden_states = self.encoder.layer_norm(hidden_states)
        for_decoder = (keys_and_values(layer.encoder_attn, hidden_states) for layer in self.layers)
        return hidden_states, *chain.from_iterable(for_decoder)


class DecoderLayers(nn.Module):
    """The decoder of a translator with its output layer.

    Args:
        model: of the translator.
    """

    def __init__(self, model: VanillaForConditionalGeneration) -> None:
        super().__init__()
        self.decoder: Any = model.model.decoder
        self.lm_head: Any = model.lm_head

    def logits(
        self, vectors: Tensor, source: Tensor, masks: tuple[Tensor, Tensor], cache: Cache
    ) -> Tensor:
        """Logits `(B, T, V)` of target vectors `(B, T, D)`.

        Args:
            vectors: of embedded tokens.
            source: `(B, S, D)`; not read where the cache has its keys and values.
            masks: added to the scores of target and source.
            cache: keys and values, of these tokens too afterwards.
        """
        for layer in self.decoder.layers:
            vectors = layer(vectors, masks[0], source, masks[1], cache=cache)
        return self.lm_head(self.decoder.layer_norm(vectors))


class DecoderGraph(DecoderLayers):
    """One more token of each beam, to the best next ones.

    Args:
        model: of the translator.
        forbidden: token ids that are never predicted.
        is_renormalized: whether their probability goes to the other tokens.
    """

    def __init__(
        self, model: VanillaForConditionalGeneration, forbidden: list[int], *, is_renormalized: bool
    ) -> None:
        super().__init__(model)
        self.is_renormalized = is_renormalized
        self.bias: Tensor | None
        self.register_buffer("bias", None)
        if forbidden:
            self.bias = torch.zeros(model.config.target_vocab_size)
            self.bias[forbidden] = LOWEST

    def forward(
        self,
        input_ids: Tensor,
        position: Tensor,
        beam_mask: Tensor,
        attention_mask: Tensor,
        source: list[Tensor],
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """One step.

        Args:
            input_ids: `(B, n)` int64.
            position: `(1,)` int64, tokens before these.
            beam_mask: `(B, n, C + n)`, 0 for the slots of a beam's own past, else `LOWEST`.
            attention_mask: `(B, S)`, 1 = real token of the source.
            source: keys and values of the source for each layer, `(B, H, S, K)`.
            past: keys and values of earlier steps for each layer, `(B, H, C, K)`.

        Returns:
            Log-probabilities `(B, n, 2n)` of the best next tokens, best first, and their ids; then
            `past` with the new slots, `(B, H, C + n, K)`.
        """
        vectors = self.decoder.embed_tokens(input_ids) * self.decoder.embed_scale
        vectors = vectors + self.decoder.embed_positions(1, position, vectors)  # (B, n, D)
        cache = EncoderDecoderCache(cache_of(past), cache_of(source))
        masks = beam_mask.unsqueeze(1), source_mask(attention_mask)
        logits = self.logits(vectors, vectors, masks, cache)  # (B, n, V)
        if self.bias is not None and self.is_renormalized:
            logits = logits + self.bias
        log_probs = logits.log_softmax(-1)  # ReduceLogSumExp takes several times as long
        if self.bias is not None and not self.is_renormalized:
            log_probs = log_probs + self.bias
        best, tokens = log_probs.topk(2 * input_ids.shape[1])
        own = cache.self_attention_cache.layers
        present = [states for layer in own for states in (layer.keys, layer.values)]
        return best, tokens, *present


def keys_and_values(attention: Any, states: Tensor) -> tuple[Tensor, Tensor]:
    """The keys and values of states `(B, L, D)`, `(B, H, L, K)` each."""
    keys, values = attention.k_proj(states), attention.v_proj(states)
    return split_heads(keys, attention.head_dim), split_heads(values, attention.v_head_dim)


def source_mask(attention_mask: Tensor) -> Tensor:
    """What is added to the scores of source tokens, `(B, 1, 1, S)`; from `(B, S)`, 1 = real."""
    return ((1 - attention_mask) * LOWEST)[:, None, None, :]


def cache_of(past: list[Tensor]) -> Cache:
    """A cache with the keys and values of each layer, given in turn."""
    cache = DynamicCache()
    pairs = zip(past[::2], past[1::2], strict=True)
    for index, (keys, values) in enumerate(pairs):
        cache.update(keys, values, index)
    return cache
