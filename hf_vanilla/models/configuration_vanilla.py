# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the 2017 Transformer.

The defaults are the paper's base model ("Attention Is All You Need", Table 3).
"""

from typing import Any

import transformers

# before the imports that fail on older versions: this file also runs where only the Hub's copy is
if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 20):
    raise ImportError(
        f"transformers {transformers.__version__} is older than 5.20: pip install -U transformers"
    )

from huggingface_hub.dataclasses import strict

from .positions_vanilla import POSITION_FREQUENCIES, POSITION_LAYOUTS
from .pretrained_vanilla import LAYER_TP_PLAN, VanillaTwoSidedConfig

POSITION_EMBEDDING_TYPES = ("sinusoidal", "learned")
# number of tokens without a share of the smoothing, by type
LABEL_SMOOTHING_TYPES = {"non_target": 1, "uniform": 0, "non_target_non_pad": 2}


@strict
class VanillaConfig(VanillaTwoSidedConfig):
    r"""Configuration of the post-norm encoder-decoder of "Attention Is All You Need" (section 3).

    Sizes, rates and biases of its layers are fields of `VanillaTwoSidedConfig`, whose defaults are
    the paper's.

    Args:
        vocab_size (`int`, defaults to 37000): entries of the source table; of the one shared table
            unless `share_encoder_decoder_embeddings` is off.
        decoder_vocab_size (`int`, *optional*): entries of the target table. None: `vocab_size`.
        head_dim (`int`, *optional*): d_k, width of a head's queries and keys in every attention.
            If None, each attention takes d_model / heads; the field then reads as the encoder's
            width and is saved as null.
        v_head_dim (`int`, *optional*): d_v, width of a head's values; None as for `head_dim`.
        final_layer_norm (`bool`, defaults to `False`): one more LayerNorm after the last layer of
            each stack; not in the paper (`torch.nn.Transformer` adds it).
        scale_embedding (`bool`, defaults to `True`): multiply embeddings by sqrt(d_model) (3.4).
        zero_pad_embedding (`bool`, defaults to `True`): embed padding as zeros, whatever its row
            holds. False: as its row, like `MarianMTModel`, whose decoder starts with that row.
        max_position_embeddings (`int`, defaults to 1024): tokens of the longest sequence: a hard
            limit for learned positions; for sinusoids, which have none, the length at which the
            tokenizer truncates.
        position_embedding_type (`str`, defaults to `"sinusoidal"`): or `"learned"` (Table 3,
            row E).
        position_layout (`str`, defaults to `"interleaved"`): sine and cosine in turn as in 3.5, or
            `"concatenated"`: all sines, then all cosines (tensor2tensor, fairseq, Marian).
        position_frequencies (`str`, defaults to `"paper"`): 10000^(-2i/d), or `"tensor2tensor"`:
            10000^(-i/(d/2-1)).
        position_offset (`int`, defaults to 0): position of the first token (fairseq: 2).
        label_smoothing (`float`, defaults to 0.1): eps_ls (5.4), used in training mode only.
        label_smoothing_type (`str`, defaults to `"non_target"`): where eps_ls goes: to the V-1
            other tokens (tensor2tensor), `"uniform"`: to all V tokens, or `"non_target_non_pad"`:
            to the V-2 tokens that are neither true nor padding.
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): one table for source and
            target.
        tie_word_embeddings (`bool`, defaults to `True`): the output projection is the target table.
        lm_head_bias (`bool`, defaults to `False`): a bias on the output projection; not in the
            paper (Marian has one).
        add_cross_attention (`bool`, defaults to `False`): read by `VanillaForCausalLM` only: its
            decoder has attention to a source, which the caller then encodes.
        pad_token_id (`int`, defaults to 0): never attended to, never a target.
        eos_token_id (`int` or `list[int]`, defaults to 1): ends every sentence.
        bos_token_id (`int`, *optional*): not used by this model.
        decoder_start_token_id (`int`, defaults to 0): the decoder's first input; the padding token,
            hence a zero vector plus position 0, as in tensor2tensor.
        use_cache (`bool`, defaults to `True`): return keys and values for incremental decoding.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla import VanillaConfig
        >>> VanillaConfig(d_model=256, encoder_attention_heads=4, decoder_attention_heads=4).d_model
        256
    """

    model_type = "vanilla"
    head_split_remedy = "change either, or set head_dim and v_head_dim"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    # how several GPUs share the weights; applies to a whole model and to each of its stacks
    base_model_tp_plan = {"shared": "embedding_rowwise", **LAYER_TP_PLAN}

    vocab_size: int = 37_000
    decoder_vocab_size: int | None = None
    head_dim: int | None = None  # type: ignore[assignment]  # reads as a number
    v_head_dim: int | None = None  # reads as a number
    final_layer_norm: bool = False
    scale_embedding: bool = True
    zero_pad_embedding: bool = True
    max_position_embeddings: int = 1024
    position_embedding_type: str = "sinusoidal"
    position_layout: str = "interleaved"
    position_frequencies: str = "paper"
    position_offset: int = 0
    label_smoothing: float | int = 0.1
    label_smoothing_type: str = "non_target"
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    lm_head_bias: bool = False
    add_cross_attention: bool = False
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = 0
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        # transformers reads this field as an int, so no property can resolve the default
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """`config.vocab_size = len(tokenizer)` sets both sizes if both sides share one table."""
        super().__setattr__(name, value)
        if name == "vocab_size" and self.share_encoder_decoder_embeddings:
            self.decoder_vocab_size = value

    def __getattribute__(self, name: str) -> Any:
        """A head width that was left out reads as `d_model / heads`, which transformers expects."""
        value = super().__getattribute__(name)
        if value is None and name in ("head_dim", "v_head_dim"):
            return self.d_model // max(self.encoder_attention_heads, 1)  # 0 is refused later
        return value

    @property
    def target_vocab_size(self) -> int:
        """Entries of the target table and of the output projection."""
        own = None if self.share_encoder_decoder_embeddings else self.decoder_vocab_size
        return self.vocab_size if own is None else own

    @property
    def zero_token_id(self) -> int | None:
        """The id that is looked up as zeros, if there is one."""
        return self.pad_token_id if self.zero_pad_embedding else None

    def head_widths(self, num_heads: int) -> tuple[int, int]:
        """d_k and d_v (3.2.2) of an attention with `num_heads` heads."""
        share, given = self.d_model // num_heads, vars(self)
        return given["head_dim"] or share, given["v_head_dim"] or share

    def validate_sizes(self) -> None:
        """Sizes and counts are positive; the optional ones may be None."""
        optional = ("decoder_vocab_size", "head_dim", "v_head_dim")
        given = [name for name in optional if vars(self)[name] is not None]
        self.require_positive("vocab_size", "max_position_embeddings", *given)
        self.require_at_least_zero("position_offset")

    def validate_head_split(self) -> None:
        """Heads divide d_model wherever their width is not given."""
        if None in (vars(self)["head_dim"], vars(self)["v_head_dim"]):
            super().validate_head_split()

    def validate_positions(self) -> None:
        """Sine and cosine come in pairs, so the paper's positions need an even width (3.5)."""
        if self.position_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is odd: make it even, or take learned positions"
            )
        if self.position_embedding_type == "learned" and self.position_offset:
            raise ValueError(
                f"position_offset={self.position_offset}: of sinusoids only, leave it out"
            )

    def validate_names(self) -> None:
        """An unknown name never becomes a default."""
        self.require_choice("position_embedding_type", POSITION_EMBEDDING_TYPES)
        self.require_choice("position_layout", POSITION_LAYOUTS)
        self.require_choice("position_frequencies", POSITION_FREQUENCIES)
        self.require_choice("label_smoothing_type", LABEL_SMOOTHING_TYPES)

    def validate_smoothing(self) -> None:
        """Some tokens are left to smooth over, and a pad token exists if it is to be excluded."""
        if self.label_smoothing_type not in LABEL_SMOOTHING_TYPES or not self.label_smoothing:
            return
        if self.label_smoothing_type == "non_target_non_pad" and self.pad_token_id is None:
            raise ValueError("label_smoothing_type='non_target_non_pad' needs a pad_token_id")
        if self.target_vocab_size <= LABEL_SMOOTHING_TYPES[self.label_smoothing_type]:
            raise ValueError(
                f"a vocabulary of {self.target_vocab_size} leaves no token for "
                f"label_smoothing_type={self.label_smoothing_type!r}: set label_smoothing=0"
            )

    def validate_sharing(self) -> None:
        """One table has one size."""
        is_shared = self.share_encoder_decoder_embeddings
        if is_shared and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} is not vocab_size={self.vocab_size}"
                ": leave it out, or set share_encoder_decoder_embeddings=False"
            )

    def validate_special_tokens(self) -> None:
        """Special tokens lie inside the vocabularies that look them up."""
        smaller = min(self.vocab_size, self.target_vocab_size)
        end_ids = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        for name, token_id, size in (
            ("pad_token_id", self.pad_token_id, smaller),
            ("bos_token_id", self.bos_token_id, smaller),
            ("decoder_start_token_id", self.decoder_start_token_id, self.target_vocab_size),
            *(("eos_token_id", end_id, smaller) for end_id in end_ids),
        ):
            if token_id is not None and not 0 <= token_id < size:
                raise ValueError(f"{name}={token_id}: the vocabulary has the ids 0 to {size - 1}")
