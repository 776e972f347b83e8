"""Checkpoints of the authors' AgentFormer (github.com/Khrylx/AgentFormer) to our models."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_vanilla.file_values import checked, read_yaml, shown
from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import CARD_FILE, model_card, public_name
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.modeling_vanilla_agentformer import (
    VanillaForDiverseTrajectoryPrediction,
    VanillaForJointTrajectoryPrediction,
)
from hf_vanilla.options import Options, option
from hf_vanilla.tracks.card import CARD

from .checkpoint_files import is_state_dict, read_checkpoint
from .weight_names import Names, load_renamed, rename_to_ours, torch_layer_names

logger = logging.getLogger(__name__)

_LAYER = "{stack}.layers.{n}."
FIRST_STAGE: Names = {
    "{stack}.input_fc.{kind}": "{stack}.embedding.projection.{kind}",
    "{stack}.pos_encoder.fc.{kind}": "{stack}.embedding.time_projection.{kind}",
    "{stack}.pos_encoder.pe": None,  # sinusoids, which we compute
    **torch_layer_names("{stack}.tf_{side}.layers.{n}.", _LAYER),
    **{  # of an agent to itself
        f"{{stack}}.{{tf}}.layers.{{n}}.{theirs}.in_proj_{kind}_self": tuple(
            f"{_LAYER}{ours}.own_{part}_proj.{kind}" for part in "qk"
        )
        for theirs, ours in {"self_attn": "self_attn", "multihead_attn": "encoder_attn"}.items()
        for kind in ("weight", "bias")
    },
    "{stack}.out_mlp.affine_layers.{n}.{kind}": "{stack}.hidden.{n}.{kind}",
    "future_encoder.q_z_net.{kind}": "future_encoder.latent_head.{kind}",
    "future_decoder.out_fc.{kind}": "future_decoder.head.{kind}",
    "future_decoder.p_z_net.{kind}": "future_decoder.prior_head.{kind}",
}
SECOND_STAGE: Names = {
    "q_mlp.affine_layers.{n}.{kind}": "map_hidden.{n}.{kind}",
    "q_A.{kind}": "map_scale.{kind}",
    "q_b.{kind}": "map_shift.{kind}",
}
# what our model is, by key of their YAML: the value it must have, and the one where it is left out
FIXED: dict[str, tuple[Any, Any]] = {
    "model_id": ("agentformer", "agentformer"),
    "input_type": (["scene_norm", "vel"], "pos"),
    "pred_type": ("scene_norm", None),
    "sn_out_type": ("norm", "scene_norm"),
    "z_type": ("gaussian", "gaussian"),
    "learn_prior": (True, False),
    "pos_concat": (True, False),
    "ar_detach": (True, True),
    "use_agent_enc": (False, False),
    "vel_heading": (False, False),
    "sn_out_heading": (False, False),
    "dec_input_type": ([], []),
    "tf_cfg": ({}, {}),
}
# likewise, of each of the three stacks; these keys and those that we read are all there may be
FIXED_OF_STACK: dict[str, dict[str, tuple[Any, Any]]] = {
    "context_encoder": {"pooling": ("mean", "mean")},
    "future_encoder": {"pooling": ("mean", "mean")},
    "future_decoder": {"pos_offset": (False, False)},
}
READ_OF_STACK = ("nlayer", "out_mlp_dim")
NUMBER = (int, float)
# the types of what is read, by the authors' names
KINDS: dict[str, Any] = {
    **dict.fromkeys(("past_frames", "future_frames", "nz", "sample_k"), int),
    **dict.fromkeys(("tf_model_dim", "tf_ff_dim", "tf_nhead"), int),
    **dict.fromkeys(("tf_dropout", "traj_scale", "conn_dist"), NUMBER),
    "scene_orig_all_past": bool,
}
FIXED_OF_LOSS = {"mask": (True, True), "normalize": (True, True)}
ALL_CONNECTED = 1000.0  # their conn_dist from here on limits nothing
# published ADE/FDE in metres of both stages together, best of 20 per person
PUBLISHED = {
    "eth": ".45/.75",
    "hotel": ".14/.22",
    "univ": ".25/.45",
    "zara1": ".18/.30",
    "zara2": ".14/.24",
}
STEP_SECONDS = 0.4  # of ETH and UCY; the YAML does not say it


@dataclass(frozen=True, kw_only=True)
class AgentFormerOptions(Options):
    """Convert a checkpoint of AgentFormer's authors, with or without its second stage."""

    input: str = option(text="checkpoint of the first stage, *_agentformer_pre")
    config: str = option(text="its YAML file, such as zara1_agentformer_pre.yml")
    output: str = option(text="folder for our model")
    second: str | None = option(None, "checkpoint of the second stage, *_agentformer")
    second_config: str | None = option(None, "its YAML file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.second is None) != (self.second_config is None):
            raise ValueError("give both second and second_config, or neither")


def convert_agentformer(options: AgentFormerOptions) -> Path:
    """Write our model folder; returns the folder.

    Raises:
        ValueError: the checkpoint does not fit its YAML, or a setting is not ours; the message
            names every tensor or setting at fault.
        OSError: a file is not found, or the output exists.
    """
    settings = read_yaml(Path(options.config))
    changes = first_stage_fields(settings, origin=options.config)
    renamed = rename_to_ours(_weights(options.input), FIRST_STAGE)
    model: Any
    if options.second is None or options.second_config is None:
        model = VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(**changes))
        load_renamed(model, renamed, origin=options.input)
    else:
        second = read_yaml(Path(options.second_config))
        _check_kinds(second, options.second_config)
        if second.get("nz") != settings.get("nz"):
            raise ValueError(
                f"{options.second_config} has nz={second.get('nz')}, but {options.config} "
                f"nz={settings.get('nz')}: give the first stage that pred_cfg names"
            )
        changes |= second_stage_fields(second)
        model = VanillaForDiverseTrajectoryPrediction(VanillaAgentFormerConfig(**changes))
        maps = rename_to_ours(_weights(options.second), SECOND_STAGE)
        for name, weight in renamed.weights.items():
            maps.weights[f"first_stage.{name}"] = weight
            maps.origins[f"first_stage.{name}"] = renamed.origins[name]
        maps.left_over.extend(renamed.left_over)
        maps.problems.extend(renamed.problems)
        load_renamed(model, maps, origin=f"{options.input} with {options.second}")
    scene = str(settings.get("dataset"))
    if scene in PUBLISHED and options.second is not None:
        logger.info(
            "published for %s: best of 20 %s m; compare with: hf-vanilla evaluate --model %s "
            "--dataset FOLDER --test_scene %s",
            *(scene, PUBLISHED[scene], options.output, scene),
        )
    with whole_folder(options.output) as folder:
        model.save_pretrained(folder)
        sources = [public_name(name) for name in (options.input, options.second) if name]
        about = f"AgentFormer (Yuan et al., 2021), converted from {' and '.join(sources)}"
        facts = replace(CARD, title=Path(options.output).resolve().name, about=about)
        model_card(facts).save(folder / CARD_FILE)
    return Path(options.output)


def first_stage_fields(settings: Mapping[str, Any], *, origin: str) -> dict[str, Any]:
    """Fields of our config from the YAML of a first stage.

    Args:
        settings: content of the YAML.
        origin: name of the file, for messages.

    Raises:
        ValueError: as of `_check_first_stage`.
    """
    _check_first_stage(settings, origin)
    losses = _section(settings, "loss_cfg")
    posterior, decoder = (_section(settings, name) for name in ("future_encoder", "future_decoder"))
    distance = settings.get("conn_dist", ALL_CONNECTED)
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    rates = ("dropout", "attention_dropout", "activation_dropout")
    return {
        **dict.fromkeys(heads, settings["tf_nhead"]),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), settings["tf_ff_dim"]),
        **dict.fromkeys(rates, settings["tf_dropout"]),
        "observed_steps": settings["past_frames"],
        "predicted_steps": settings["future_frames"],
        "step_seconds": STEP_SECONDS,
        "position_scale": settings.get("traj_scale", 1),
        "origin_is_past_mean": settings.get("scene_orig_all_past", False),
        "connection_distance": distance if distance < ALL_CONNECTED else 0.0,
        "num_modes": settings.get("sample_k", 20),
        "latent_dim": settings["nz"],
        "head_dims": decoder.get("out_mlp_dim") or [],
        "d_model": settings["tf_model_dim"],
        "encoder_layers": _section(settings, "context_encoder").get("nlayer", 6),
        "posterior_layers": posterior.get("nlayer", 6),
        "decoder_layers": decoder.get("nlayer", 6),
        "reconstruction_weight": _of_loss(losses, "mse", "weight", 1.0),
        "divergence_weight": _of_loss(losses, "kld", "weight", 1.0),
        "divergence_floor": _of_loss(losses, "kld", "min_clip", 2.0),
        "sample_weight": _of_loss(losses, "sample", "weight", 1.0),
    }


def _check_first_stage(settings: Mapping[str, Any], origin: str) -> None:
    """Refuse the YAML of another model.

    Raises:
        ValueError: it is a model with a raster map, or settings are missing or are not those of our
            model; the message names all of them.
    """
    _check_kinds(settings, origin)
    keys = ("input_type", "fut_input_type", "dec_input_type")
    inputs = [checked(settings.get(key) or [], (list, str), f"{origin}: {key}") for key in keys]
    if settings.get("use_map") or any("map" in kinds for kinds in inputs):
        raise ValueError(f"{origin} is a model with a raster map, which our model does not read")
    wrong = _differences(settings, FIXED, "")
    for name, fixed in FIXED_OF_STACK.items():
        stack = _section(settings, name)
        wrong += _differences(stack, fixed, f"{name}.")
        checked(stack.get("nlayer", 6), int, f"{origin}: {name}.nlayer")
        unknown = sorted({*stack} - {*fixed, *READ_OF_STACK})
        wrong += [f"{name}.{key}={shown(stack[key])}, which is unknown" for key in unknown]
    losses = _section(settings, "loss_cfg")
    wrong += _losses_that_differ(losses)
    stacks = [_section(settings, name) for name in ("future_encoder", "future_decoder")]
    hidden = [checked(stack.get("out_mlp_dim") or [], list, "out_mlp_dim") for stack in stacks]
    if hidden[0] != hidden[1]:
        wrong.append(f"out_mlp_dim={hidden[0]} of future_encoder and {hidden[1]} of future_decoder")
    needed = ("past_frames", "future_frames", "tf_model_dim", "tf_ff_dim", "tf_nhead", "tf_dropout")
    wrong += [f"no {key}" for key in (*needed, "nz") if key not in settings]
    if wrong:
        raise ValueError(f"{origin} is not the model of ETH and UCY: {'; '.join(wrong)}")


def second_stage_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of our config from the YAML of a second stage.

    Raises:
        ValueError: a loss is not that of our model.
    """
    losses = _section(settings, "loss_cfg")
    wrong = _losses_that_differ(losses)
    if wrong:
        raise ValueError(f"the second stage is not the model of ETH and UCY: {'; '.join(wrong)}")
    return {
        "num_modes": settings.get("sample_k", 20),
        "map_dims": checked(settings.get("qnet_mlp", [512, 256]), list, "qnet_mlp"),
        "map_divergence_weight": _of_loss(losses, "kld", "weight", 0.1),
        "map_divergence_floor": _of_loss(losses, "kld", "min_clip", 10.0),
        "map_reconstruction_weight": _of_loss(losses, "recon", "weight", 5.0),
        "diversity_weight": _of_loss(losses, "diverse", "weight", 5.0),
        "diversity_scale": _of_loss(losses, "diverse", "d_scale", 5.0),
    }


def _check_kinds(settings: Mapping[str, Any], origin: str) -> None:
    """Refuse a value of another type, by file and name."""
    for key in sorted(settings.keys() & KINDS.keys()):
        checked(settings[key], KINDS[key], f"{origin}: {key}")


def _differences(
    settings: Mapping[str, Any], fixed: Mapping[str, tuple[Any, Any]], prefix: str
) -> list[str]:
    """What differs from our model, in words."""
    return [
        f"{prefix}{key}={shown(settings.get(key, default))} instead of {wanted!r}"
        for key, (wanted, default) in fixed.items()
        if settings.get(key, default) != wanted
    ]


def _losses_that_differ(losses: Mapping[str, Any]) -> list[str]:
    parts = [_differences(_section(losses, name), FIXED_OF_LOSS, f"{name}.") for name in losses]
    return [f"loss_cfg.{difference}" for part in parts for difference in part]


def _section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return checked(settings.get(name) or {}, dict, name)


def _of_loss(losses: Mapping[str, Any], name: str, key: str, default: float) -> float:
    """A number of one loss; a loss that is not among those listed has no weight."""
    if key == "weight" and losses and name not in losses:
        return 0.0
    return checked(_section(losses, name).get(key, default), NUMBER, f"loss_cfg.{name}.{key}")


def _weights(path: str) -> dict[str, Tensor]:
    content = read_checkpoint(path)
    if not isinstance(content, dict) or not is_state_dict(content.get("model_dict")):
        raise ValueError(f"{path} has no model_dict: give a checkpoint of AgentFormer's train.py")
    return content["model_dict"]
