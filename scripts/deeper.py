"""Make a deeper model of a trained one by repeating layers: a start for `--initial_model`.

    python scripts/deeper.py --model runs/help_ende --layers 0 1 1 2 2 3 --output runs/start_6_6
    hf-vanilla train --recipe help_ende --initial_model runs/start_6_6 \
        --model.encoder_layers 6 --model.decoder_layers 6 --output_dir runs/help_6_6

A deep post-norm model learns slowly from random weights; Gong et al. 2019 stack trained layers. The
model translates badly until it is trained.
"""

import copy
from dataclasses import dataclass

from hf_vanilla.commands import run
from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import ALIGNMENT_FILE, carry_over
from hf_vanilla.options import Options, option
from hf_vanilla.text.loading import load_translator, require_float


@dataclass(frozen=True, kw_only=True)
class DeeperOptions(Options):
    """Make a deeper model of a trained one by repeating layers."""

    model: str = option(text="model folder or Hub id")
    layers: list[str] = option(text="layers of each side of the new model, as numbers of the old")
    output: str = option(text="folder of the new model")


def write_deeper(options: DeeperOptions) -> None:
    """Write the model, its tokenizer and its card.

    Raises:
        ValueError: a layer is not there, or the weights are int8.
        OSError: the model is not found, or the output exists.
    """
    model, tokenizer = load_translator(options.model)
    require_float(model, options.model)
    for side, stack in (("encoder", model.model.encoder), ("decoder", model.model.decoder)):
        count = len(stack.layers)
        names = [str(number) for number in range(count)]
        for name in options.layers:
            if name not in names:
                raise ValueError(f"layers={name}: the {side} has {', '.join(names)}")
        layers = [copy.deepcopy(stack.layers[int(name)]) for name in options.layers]
        stack.layers = type(stack.layers)(layers)
        setattr(model.config, f"{side}_layers", len(options.layers))
    with whole_folder(options.output) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        carry_over(options.model, folder, change="Its layers were repeated, without training.")
        (folder / ALIGNMENT_FILE).unlink(missing_ok=True)  # it may name another layer


if __name__ == "__main__":
    run(write_deeper, DeeperOptions)
