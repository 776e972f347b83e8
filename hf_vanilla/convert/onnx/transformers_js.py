"""Export a translator to ONNX in the layout of transformers.js, the library for browsers and node.

Its files have the names of Optimum's. transformers.js keeps keys and values of the source only by
passing them back, so the decoder's graph computes them where the cache has none.
"""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache

from hf_vanilla.convert.weight_names import refuse
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration

from .files import ANY, Inputs, write_graph
from .translators import (
    LOWEST,
    DecoderLayers,
    cache_of,
    empty_cache,
    keys_and_values,
    load_for_export,
    source_mask,
    write_encoder,
    written_decoding,
)

CACHES = [f"{side}.{kind}" for side in ("decoder", "encoder") for kind in ("key", "value")]
# by this name, transformers.js gives an empty cache the size of the batch
BATCH = torch.export.Dim("batch_size", max=65536)
SUFFIXES = {"float32": "", "int8": "_quantized"}  # of file names, by transformers.js' dtype


class MergedDecoderGraph(DecoderLayers):
    """New target tokens to logits, with the cache of transformers' own search: a row per beam."""

    def forward(
        self, attention_mask: Tensor, input_ids: Tensor, source: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """One step, or several tokens at once.

        Args:
            attention_mask: `(B, S)`, 1 = real token of the source.
            input_ids: `(B, T)` int64.
            source: states of the encoder, `(B, S, D)`.
            past: of each layer, own keys and values `(B, H, C, K)`, then those of the source
                `(B, H, S, K)`, or with no slots.

        Returns:
            Logits `(B, T, V)`, and `past` with the new slots.
        """
        vectors = self.decoder.embed_tokens(input_ids) * self.decoder.embed_scale
        length, slots = input_ids.shape[1], past[0].shape[2]
        hidden_states = vectors + self.decoder.embed_positions(length, slots, vectors)
        own = [past[i] for i in range(len(past)) if i % 4 < 2]
        cross = []
        for layer, keys, values in zip(self.decoder.layers, past[2::4], past[3::4], strict=True):
            missing = source[:, keys.shape[2] :]  # all or nothing
            new_keys, new_values = keys_and_values(layer.encoder_attn, missing)
            cross += [torch.cat((keys, new_keys), 2), torch.cat((values, new_values), 2)]
        cache = EncoderDecoderCache(cache_of(own), cache_of(cross))
        ones = torch.ones(length, slots + length)
        causal = torch.where(ones.tril(slots) == 1, 0.0, LOWEST)  # (T, C + T)
        masks = causal[None, None], source_mask(attention_mask)
        logits = self.logits(hidden_states, source, masks, cache)
        present: list[Tensor] = []
        for index, layer in enumerate(cache.self_attention_cache.layers):
            present += [layer.keys, layer.values, *cross[2 * index : 2 * index + 2]]
        return logits, *present


def export_for_transformers_js(name: str, folder: Path, dtype: str) -> None:
    """Write onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx, tokenizer and configs.

    transformers.js takes the model for one of Marian's, whose graphs have the same inputs. It has
    no beam search: the written generation config is that of greedy search.

    Args:
        name: folder or Hub id of our model.
        folder: to fill.
        dtype: of the weights.

    Raises:
        ValueError: the layout cannot express the model; the message names all reasons.
    """
    model, tokenizer = load_for_export(name)
    check_layout(model)
    graphs = folder / "onnx"
    graphs.mkdir()
    suffix = SUFFIXES[dtype]
    write_encoder(model, graphs / f"encoder_model{suffix}.onnx", dtype, has_cache=False)
    _write_decoder(model, graphs / f"decoder_model_merged{suffix}.onnx", dtype)
    config = model.config.to_dict() | {"model_type": "marian", "architectures": ["MarianMTModel"]}
    del config["_name_or_path"]  # a path of this machine
    decoding = written_decoding(model)
    ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bad_words_ids")
    greedy = {
        **{name: getattr(decoding, name) for name in (*ids, "max_new_tokens")},
        "max_length": decoding.max_length or model.config.max_position_embeddings,
        "num_beams": 1,
    }
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizer"
    for file, values in (
        ("config", config),
        ("generation_config", {k: v for k, v in greedy.items() if v is not None}),
        ("tokenizer_config", settings),
    ):
        (folder / f"{file}.json").write_text(f"{json.dumps(values, indent=2)}\n", "utf-8")


def check_layout(model: VanillaForConditionalGeneration) -> None:
    """Refuse shapes that transformers.js cannot make of Marian's config.

    Raises:
        ValueError: there are some; all are named.
    """
    config, positions = model.config, model.config.position_embedding_type
    encoder, decoder = config.encoder_attention_heads, config.decoder_attention_heads
    reasons = {
        f"{encoder} and {decoder} heads in encoder and decoder (needed: equal)": encoder != decoder,
        "head_dim or v_head_dim (needed: d_model / heads)": any(
            width * decoder != config.d_model for width in config.head_widths(decoder)
        ),
        f"{positions} positions (needed: sinusoidal)": positions != "sinusoidal",
    }
    refuse("transformers.js", reasons)


def _write_decoder(model: VanillaForConditionalGeneration, path: Path, dtype: str) -> None:
    batch, length, source, slots = 2, 3, 5, 4
    own, of_source = empty_cache(model, batch, slots), empty_cache(model, batch, source)
    past = [
        states
        for layer in range(0, len(own), 2)
        for states in (*own[layer : layer + 2], *of_source[layer : layer + 2])
    ]
    names = [f"{i}.{cache}" for i in range(model.config.decoder_layers) for cache in CACHES]
    rows = {0: BATCH, 1: ANY}
    inputs: Inputs = [
        ("encoder_attention_mask", torch.ones(batch, source, dtype=torch.long), rows),
        ("input_ids", torch.ones(batch, length, dtype=torch.long), rows),
        ("encoder_hidden_states", torch.zeros(batch, source, model.config.d_model), rows),
        [
            (f"past_key_values.{name}", states, {0: BATCH, 2: ANY})
            for name, states in zip(names, past, strict=True)
        ],
    ]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    write_graph(MergedDecoderGraph(model), inputs, outputs, path, dtype=dtype)
