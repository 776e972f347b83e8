# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""When `generate()` may search our way, and when it must go transformers' own.

Both ways give the same result. Ours takes what an ordinary call holds; whatever it does not know,
be it a hook, a cache of the caller's or an argument, goes transformers' way.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import logits_process, stopping_criteria
from transformers.modeling_outputs import BaseModelOutput

from .attention_vanilla import VanillaAttention
from .generation_vanilla import SourceLengthCriteria, SourceLengthEnd
from .layers_vanilla import VanillaDecoderLayer
from .search_vanilla import Search, beam_search, greedy_search
from .search_vanilla_decoder import SearchedDecoder
from .stacks_vanilla import VanillaDecoder, VanillaPreTrainedModel

# each looks at one hypothesis at a time and remembers nothing, so sentences may leave and move;
# every other kind is called on the whole batch in its order, to the end
ROWWISE_PROCESSORS = (
    SourceLengthEnd,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.LogitNormalization,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
)
ROWWISE_CRITERIA = (
    SourceLengthCriteria,
    stopping_criteria.MaxLengthCriteria,
    stopping_criteria.MaxTimeCriteria,
    stopping_criteria.EosTokenCriteria,
)
# what `generate()` hands to a search of an ordinary call
KNOWN_ARGUMENTS = {
    "attention_mask",
    "encoder_outputs",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
}
# whose methods a caller may have replaced on the model, as PEFT does
STEPS_OF_GENERATE = {
    "forward",
    "prepare_inputs_for_generation",
    "_update_model_kwargs_for_generation",
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# how transformers records attention weights; silent unless asked
OWN_HOOKS = "transformers.utils.output_capturing"


def fast_search(
    model: VanillaPreTrainedModel,
    input_ids: Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    **kwargs: Any,
) -> Any:
    """The result of this search of `generate()`, or None where transformers must find it.

    Args:
        model: `VanillaForConditionalGeneration`.
        input_ids: `(B * n, P)` prompts, those of one sentence equal.
        processors: logits processors.
        criteria: stopping criteria.
        config: generation config of this call.
        **kwargs: what else `generate()` gives to its searches.
    """
    streamer = kwargs.pop("streamer", None)
    is_asked_otherwise = kwargs.pop("synced_gpus", False) or not is_plain_search(config)
    if is_asked_otherwise or not is_ordinary_call(model, input_ids, kwargs):
        return None
    if not is_as_built(model):
        return None
    beams = config.num_beams
    is_unseen = (
        streamer is None
        and not config.return_dict_in_generate
        and all(type(each) in ROWWISE_PROCESSORS for each in processors)
        and all(type(each) in ROWWISE_CRITERIA for each in criteria)
    )
    search = Search(
        mixin=model,
        config=config,
        processors=processors,
        criteria=criteria,
        is_unseen=is_unseen,
        streamer=streamer,
    )
    states = kwargs["encoder_outputs"].last_hidden_state[::beams]
    mask = kwargs.get("attention_mask")
    mask = None if mask is None else mask[::beams]
    decoder = SearchedDecoder(model, states, mask, beams, reuses_logits=is_unseen)
    return (beam_search if beams > 1 else greedy_search)(search, decoder, input_ids)


def is_plain_search(config: GenerationConfig) -> bool:
    """Greedy or beam search with a growing cache, and no record of what happens inside."""
    return (
        not (config.do_sample or config.is_assistant or config.low_memory)
        and not (config.output_attentions or config.output_hidden_states)
        and bool(config.use_cache)
        and config.cache_implementation in (None, "dynamic")
        and config.prefill_chunk_size is None
    )


def is_ordinary_call(
    model: VanillaPreTrainedModel, input_ids: Tensor, kwargs: dict[str, Any]
) -> bool:
    """One source and one prompt per sentence, an empty cache of `generate()`'s own, no more."""
    cache: Any = kwargs.get("past_key_values")
    encoded: Any = kwargs.get("encoder_outputs")
    if not {name for name, value in kwargs.items() if value is not None} <= KNOWN_ARGUMENTS:
        return False
    if type(cache) is not EncoderDecoderCache or getattr(cache, "_is_user_defined", False):
        return False
    halves = (cache.self_attention_cache, cache.cross_attention_cache)
    if any(type(half) is not DynamicCache or half.get_seq_length() for half in halves):
        return False
    if not isinstance(encoded, BaseModelOutput):
        return False
    states, mask = encoded.last_hidden_state, kwargs.get("attention_mask")
    return (
        isinstance(states, Tensor)
        and states.dim() == 3
        and len(states) == len(input_ids)
        and (mask is None or mask.shape == states.shape[:2])
        and {input_ids.device, states.device} == {model.device}
    )


def is_as_built(model: VanillaPreTrainedModel) -> bool:
    """Nobody has hooked, replaced, compiled or spread over devices what the search goes around."""
    decoder: Any = model.base_model.decoder
    return (
        not model.training
        and not torch.compiler.is_compiling()
        and model.config._attn_implementation in ("eager", "sdpa")
        and not hasattr(model, "hf_device_map")
        and type(decoder).forward is VanillaDecoder.forward
        and all(is_own_layer(layer) for layer in decoder.layers)
        and not any(is_changed(module) for module in model.modules())
    )


def is_own_layer(layer: Any) -> bool:
    """Whether a decoder layer computes what `read_by_layer` does."""
    return (
        type(layer) is VanillaDecoderLayer
        and type(layer.self_attn) is VanillaAttention
        and type(layer.encoder_attn) is VanillaAttention
    )


def is_changed(module: nn.Module) -> bool:
    """Something of this module's own would be passed over, or be shown rows of another shape."""
    hooks = (hook for name in HOOKS for hook in vars(module)[name].values())
    return (
        not STEPS_OF_GENERATE.isdisjoint(vars(module))
        or module._compiled_call_impl is not None
        or any(getattr(hook, "__module__", None) != OWN_HOOKS for hook in hooks)
    )
