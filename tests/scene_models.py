"""Small forecasters of agents and lanes, and scenes for them."""

import itertools

import torch

import hf_vanilla
from hf_vanilla.families import TASKS
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_scene import (
    ENCODER_NAMES,
    FUSION_NAMES,
    VanillaSceneConfig,
)
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig

SIZES = {
    "observed_steps": 5,
    "predicted_steps": 3,
    "num_modes": 4,
    "num_seeds": 6,
    "num_latents": 3,
    "num_regions": 3,
    "raster_cells": 8,
    "max_others": 9,
    "max_lanes": 11,
    "d_model": 8,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 10,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 12,
    "thinning_distance": 0.1,
}
GRID = [f"{fusion} {encoder}" for fusion, encoder in itertools.product(FUSION_NAMES, ENCODER_NAMES)]
CLASSES = [*GRID, "proposals", "proposals_paper", "neighbors", "gate", "vectors"]


def forms_of(task):
    """Form -> model class of a task."""
    return {form: getattr(hf_vanilla, name) for form, name in TASKS[task].forms.items()}


SCENE_FORMS = forms_of("scene_trajectories")


def scene_model(name, **changes):
    """A random model in double precision, in evaluation mode; see `CLASSES`."""
    sizes = {**SIZES, **changes}
    form = "fusion" if name in GRID else name
    if name in GRID:
        sizes["fusion"], sizes["encoder"] = name.split()
    torch.manual_seed(3)
    model = SCENE_FORMS[form](VanillaSceneConfig(**sizes)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():  # also those that start at 0 or 1
            weight.add_(0.1 * torch.randn_like(weight))
    if hasattr(model, "centres"):
        model.centres.copy_(torch.randn_like(model.centres))
    return model


def scenes(count=2, agents=4, lanes=3, points=4, seed=0):
    """Inputs of scenes with a future, in double precision."""
    draw = torch.Generator().manual_seed(seed)

    def walk(*shape):
        start = 3 * torch.randn(*shape[:-2], 1, 2, generator=draw)
        moves = torch.randn(*shape, generator=draw) + torch.randn(*shape[:-2], 1, 2, generator=draw)
        return (start + moves.cumsum(-2)).double()

    tracks = walk(count, agents, SIZES["observed_steps"] + SIZES["predicted_steps"], 2)
    return {
        "past_values": tracks[:, :, : SIZES["observed_steps"]],
        "past_observed_mask": torch.ones(count, agents, SIZES["observed_steps"]),
        "agent_mask": torch.ones(count, agents),
        "future_values": tracks[:, :, SIZES["observed_steps"] :],
        "lane_values": walk(count, lanes, points, 2),
        "lane_mask": torch.ones(count, lanes, points),
        "lane_kinds": torch.randint(3, (count, lanes), generator=draw),
    }


def every_forecaster():
    """One random model of every class, in evaluation mode, with float32 inputs and a future."""
    wide = {name: values.float() for name, values in scenes().items()}
    agents = {name: values.flatten(0, 1) for name, values in wide.items() if "values" in name}
    agents = {name: values for name, values in agents.items() if "lane" not in name}
    joint = {name: values for name, values in wide.items() if "lane" not in name}
    common = {name: SIZES[name] for name in ("observed_steps", "predicted_steps", "d_model")}
    torch.manual_seed(3)
    for form in SCENE_FORMS:
        name = "early full" if form == "fusion" else form
        yield scene_model(name).float(), wide
    for name, form in forms_of("trajectories").items():
        fields = TASKS["trajectories"].form_fields.get(name, {})
        model = form(VanillaTracksConfig(**common, **fields, num_codes=9)).eval()
        if hasattr(model, "fit_codebook"):
            model.fit_codebook(agents["past_values"], agents["future_values"])
        yield model, agents
    for stage in forms_of("joint_trajectories").values():
        yield stage(VanillaAgentFormerConfig(**common)).eval(), joint


def without_future(inputs):
    return {name: values for name, values in inputs.items() if "future" not in name}
