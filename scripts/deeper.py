"""Make a deeper model of a trained one by repeating layers: a start for `--initial_model`.

    python scripts/deeper.py --model runs/help_ende --layers 0 1 1 2 2 3 --output runs/start_6_6
    hf-vanilla train --recipe help_ende --initial_model runs/start_6_6 \
        --model.encoder_layers 6 --model.decoder_layers 6 --output_dir runs/help_6_6

A deep post-norm model learns slowly from random weights; Gong et al. 2019 stack trained layers. The
new model translates worse than the old one until it is trained.
"""

from dataclasses import dataclass
from pathlib import Path

from hf_vanilla.commands import run
from hf_vanilla.convert.distill import LAYERS, write_layers
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
    for side in LAYERS:
        names = [str(number) for number in range(getattr(model.config, side))]
        for name in options.layers:
            if name not in names:
                raise ValueError(f"layers={name}: the {side} of the model are {', '.join(names)}")
    layers = {side: [int(name) for name in options.layers] for side in LAYERS}
    write_layers(Path(options.output), options.model, model, tokenizer, layers)


if __name__ == "__main__":
    run(write_deeper, DeeperOptions)
