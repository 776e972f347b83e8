# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""When `generate()` may use our own search, and when transformers' search must run.

Both give the same result. Ours serves ordinary calls; a call with anything it does not know, be it
a hook, a cache of the caller's or an argument, goes to transformers' search.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from .attention_vanilla import VanillaAttention
from .generation_vanilla import is_plain_search
from .layers_vanilla import VanillaDecoderLayer
from .modeling_vanilla import VanillaForConditionalGeneration
from .pretrained_vanilla import VanillaPreTrainedModel
from .search_vanilla import beam_search, greedy_search
from .search_vanilla_constraints import Constraints
from .search_vanilla_decoder import Ensemble
from .stacks_vanilla import VanillaDecoder

# arguments of `generate()`, besides settings, that our search takes as transformers' does
KNOWN_ARGUMENTS = {
    "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "decoder_input_ids",
    "prefix_allowed_tokens_fn", "streamer",
}  # fmt: skip
# methods that a caller may have replaced on the model, as PEFT does
STEPS_OF_GENERATE = {
    "forward",
    "prepare_inputs_for_generation",
    "_update_model_kwargs_for_generation",
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# how transformers records attention weights; these hooks do nothing unless asked to record
OWN_HOOKS = "transformers.utils.output_capturing"


def own_search(
    model: VanillaForConditionalGeneration,
    settings: GenerationConfig,
    arguments: dict[str, Any],
    limits: Tensor | None,
    *,
    ensemble: Ensemble | None = None,
    constraints: Constraints | None = None,
) -> Callable | None:
    """What `generate()` calls in place of transformers' search; None: that search has to run.

    Args:
        model: the one that generates.
        settings: of this call.
        arguments: of this call, without settings.
        limits: `(B,)` most tokens of each sentence, prompt included; None: `max_length`.
        ensemble: models that decode together with this one, which read the source here.
        constraints: phrases that the translations contain.

    Raises:
        TypeError: the ensemble or the constraints are of another class.
        ValueError: they do not fit the call.
    """
    for value, kind in ((ensemble, Ensemble), (constraints, Constraints)):
        if not isinstance(value, kind | None):
            raise TypeError(f"give {kind.__name__}(...), not a {type(value).__name__}")
    if not can_search(model, settings, arguments):
        return None
    search: Callable = partial(greedy_search, streamer=arguments.get("streamer"))
    if (settings.num_beams or 1) > 1:
        search = beam_search
    if ensemble is not None:
        ensemble.check(model)
        if arguments.get("input_ids") is None:
            raise ValueError("an ensemble needs input_ids, which every model reads")
        encoded = ensemble.encode(arguments["input_ids"], arguments["attention_mask"])
        search = partial(search, ensemble=encoded)
    if constraints is not None and any(constraints.phrases):
        search = partial(search, constraints=constraints.search(settings, limits))
    return search


def can_search(
    model: VanillaPreTrainedModel, settings: GenerationConfig, arguments: dict[str, Any]
) -> bool:
    """Whether our own search serves this call of `generate()`.

    Args:
        model: `VanillaForConditionalGeneration`.
        settings: of this call.
        arguments: of this call, without settings.
    """
    given = {name for name, value in arguments.items() if value is not None and value is not False}
    return (
        given <= KNOWN_ARGUMENTS
        and is_plain_search(settings)
        and ("streamer" not in given or settings.num_beams in (None, 1))
        and has_plain_inputs(model, arguments)
        and is_as_built(model)
    )


def has_plain_inputs(model: VanillaPreTrainedModel, arguments: dict[str, Any]) -> bool:
    """One source and at most one prompt per sentence, on the model's device."""
    names = ("input_ids", "inputs_embeds", "attention_mask", "decoder_input_ids")
    tensors = [arguments[name] for name in names if arguments.get(name) is not None]
    if (encoded := arguments.get("encoder_outputs")) is not None:
        states, mask = getattr(encoded, "last_hidden_state", None), arguments.get("attention_mask")
        if not isinstance(encoded, BaseModelOutput) or not isinstance(states, Tensor):
            return False
        if states.dim() != 3 or (mask is not None and mask.shape != states.shape[:2]):
            return False
        tensors.append(states)
    return (
        all(isinstance(tensor, Tensor) for tensor in tensors)
        and {tensor.device for tensor in tensors} == {model.device}
        and len({len(tensor) for tensor in tensors}) == 1
    )


def is_as_built(model: VanillaPreTrainedModel) -> bool:
    """No module trains, is hooked, replaced or compiled, or is on another device.

    Dropout that is switched on by itself (Monte Carlo dropout) counts as training.
    """
    decoder: Any = model.base_model.decoder
    return (
        not torch.compiler.is_compiling()
        and model.config._attn_implementation in ("eager", "sdpa")
        and not hasattr(model, "hf_device_map")
        and all(
            getattr(type(model), name) is getattr(VanillaForConditionalGeneration, name)
            for name in STEPS_OF_GENERATE
        )
        and type(decoder).forward is VanillaDecoder.forward
        and all(
            type(layer) is VanillaDecoderLayer
            and type(layer.self_attn) is type(layer.encoder_attn) is VanillaAttention
            for layer in decoder.layers
        )
        and not any(is_changed(module) for module in model.modules())
    )


def is_changed(module: nn.Module) -> bool:
    """Whether a module trains, or has hooks or methods that expect transformers' calls."""
    hooks = (hook for name in HOOKS for hook in vars(module)[name].values())
    return (
        module.training
        or not STEPS_OF_GENERATE.isdisjoint(vars(module))
        or module._compiled_call_impl is not None
        or any(getattr(hook, "__module__", None) != OWN_HOOKS for hook in hooks)
    )
