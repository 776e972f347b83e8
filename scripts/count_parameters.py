"""Print the parameters of Table 3: of our model, by formula, and by the paper (6.2)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hf_vanilla
from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.commands import run
from hf_vanilla.options import Options, option
from hf_vanilla.training.recipe import Recipe, read_recipe

TABLE_3 = str(Path(hf_vanilla.__file__).parent / "recipes" / "table3")
# millions, by the name of the recipe; A, D and E have none of their own in the paper
PAPER_MILLIONS = {
    "base": 65,
    "B1_d_k_16": 58,
    "B2_d_k_32": 60,
    "C1_2_layers": 36,
    "C2_4_layers": 50,
    "C3_8_layers": 80,
    "C4_d_model_256": 28,
    "C5_d_model_1024": 168,
    "C6_d_ff_1024": 53,
    "C7_d_ff_4096": 90,
    "big": 213,
}
# the heads of Table 3's columns; a field of the decoder goes by the encoder's while both agree
PAPER_SYMBOLS = {
    "encoder_layers": "N",
    "encoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "h",
    "head_dim": "d_k",
    "v_head_dim": "d_v",
    "dropout": "P_drop",
    "label_smoothing": "eps_ls",
    "position_embedding_type": "positions",
    "vocab_size": "V",
}
HEADER = ("row", "differs from base", "our model", "formula", "paper", "ours is", "V for the paper")


def count_parameters(config: VanillaConfig) -> int:
    """Trained numbers of the model, tied ones once; it is built without memory for them."""
    with torch.device("meta"):
        model = VanillaForConditionalGeneration(config)
    return sum(parameter.numel() for parameter in model.parameters())


def parameters_by_formula(config: VanillaConfig) -> int:
    """The sizes of sections 3.1 to 3.5 multiplied out.

    For the paper's models it is `N (a + f + 4 d) + N (2 a + f + 6 d) + V d`, with
    `a = 2 d h d_k + 2 d h d_v` and `f = 2 d d_ff + d_ff + d`. Options beyond the paper add their
    own: biases, further tables, learned positions. An activation with weights is not counted.
    """
    d, source, target = config.d_model, config.vocab_size, config.target_vocab_size
    encoder = config.encoder_layers * (
        _attention(config, config.encoder_attention_heads)
        + _feed_forward(d, config.encoder_ffn_dim)
        + 4 * d
    )
    decoder = config.decoder_layers * (
        2 * _attention(config, config.decoder_attention_heads)
        + _feed_forward(d, config.decoder_ffn_dim)
        + 6 * d
    )
    words = source * d
    words += 0 if config.share_encoder_decoder_embeddings else target * d
    words += 0 if config.tie_word_embeddings else target * d
    words += target if config.lm_head_bias else 0
    is_learned = config.position_embedding_type == "learned"
    return encoder + decoder + words + is_learned * 2 * config.max_position_embeddings * d


def _attention(config: VanillaConfig, heads: int) -> int:
    d, (d_k, d_v) = config.d_model, config.head_widths(heads)
    biases = 2 * heads * d_k + heads * d_v + d
    return 2 * d * heads * d_k + 2 * d * heads * d_v + config.attention_bias * biases


def _feed_forward(d_model: int, d_ff: int) -> int:
    return 2 * d_model * d_ff + d_ff + d_model


@dataclass(frozen=True)
class ParameterRow:
    """One row of the table.

    Attributes:
        name: of the recipe.
        changes: fields of `VanillaConfig` that differ from the paper's base model.
        counted: parameters of our model.
        by_formula: parameters by `parameters_by_formula`.
        millions: the paper's figure, None where it prints none.
        vocabulary: entries of the one table with which our model would have the paper's figure.
    """

    name: str
    changes: dict[str, Any]
    counted: int
    by_formula: int
    millions: int | None
    vocabulary: int | None

    @property
    def difference(self) -> float | None:
        """What our model has more than the paper says, as a share of the paper's figure."""
        return None if self.millions is None else self.counted / (self.millions * 1e6) - 1

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEADER`."""
        ours = (self.name, _in_symbols(self.changes), f"{self.counted:,}", f"{self.by_formula:,}")
        if self.difference is None:
            return (*ours, "", "", "")
        return (*ours, f"{self.millions} M", f"{self.difference:+.1%}", f"{self.vocabulary:,}")


def _in_symbols(changes: dict[str, Any]) -> str:
    cells = []
    for name, value in changes.items():
        encoder_name = name.replace("decoder_", "encoder_", 1)
        if encoder_name == name or changes.get(encoder_name) != value:
            cells.append(f"{PAPER_SYMBOLS.get(name, name)}={value}")
    return ", ".join(cells)


def parameter_row(name: str, recipe: Recipe) -> ParameterRow:
    """The row of one recipe."""
    config = recipe.config()
    counted, millions = count_parameters(config), PAPER_MILLIONS.get(name)
    missing = None if millions is None else (millions * 1e6 - counted) / config.d_model
    return ParameterRow(
        name=name,
        changes=recipe.model,
        counted=counted,
        by_formula=parameters_by_formula(config),
        millions=millions,
        vocabulary=None if missing is None else round(config.vocab_size + missing),
    )


@dataclass(frozen=True, kw_only=True)
class ParameterTableOptions(Options):
    """Count the parameters of recipes."""

    folder: str = option(TABLE_3, "folder of recipes")


def parameter_table(options: ParameterTableOptions) -> str:
    """A Markdown table of the recipes in a folder, in the paper's order: base, A to E, big.

    Raises:
        ValueError: the folder holds no recipe, or one that cannot be read.
    """
    paths = sorted(
        Path(options.folder).glob("*.yaml"),
        key=lambda path: (path.stem == "big", path.stem != "base", path.stem),
    )
    if not paths:
        raise ValueError(f"{options.folder} holds no recipe: give a folder of .yaml files")
    rows = [parameter_row(path.stem, read_recipe(["--recipe", str(path)])) for path in paths]
    return _as_markdown([HEADER, *(row.cells() for row in rows)])


def _as_markdown(table: list[tuple[str, ...]]) -> str:
    """Columns of even width; words to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rule = ["-" * (w + 2) if c < 2 else "-" * (w + 1) + ":" for c, w in enumerate(widths)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


if __name__ == "__main__":
    print(run(parameter_table, ParameterTableOptions))
