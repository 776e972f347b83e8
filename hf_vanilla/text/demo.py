"""The demo: train on the built-in corpus, translate unseen numbers, score, draw."""

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.corpus import built_in_corpus
from hf_vanilla.options import install_hint
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

from .loading import load_translator
from .plot import PlotAttentionOptions, plot_attention
from .translator import translate

RECIPE = "numbers"
SENTENCE = "seven hundred forty-two thousand three hundred nineteen"
SHOWN = 10
CLONE = Path(__file__).resolve().parents[2]  # if the package is in one


def read_demo(arguments: Sequence[str]) -> Recipe:
    """The recipe of the demo with options from a command line.

    Raises:
        ValueError: an option is unknown or invalid.
    """
    return read_recipe(["--recipe", RECIPE, *arguments])


def demo(recipe: Recipe) -> str:
    """Train, translate numbers that were not trained on, score, and draw attention.

    Returns:
        Text for the terminal: translations, scores, files and next steps.

    Raises:
        ValueError: the recipe is invalid.
        OSError: a file cannot be written.
    """
    folder = train(recipe)
    model, tokenizer = load_translator(str(folder))
    unseen = built_in_corpus()["test"]
    references = unseen["target"][:]
    translations = translate(model, tokenizer, unseen["source"][:], progress=True)
    # a German number is one word, so BLEU counts characters here; its signature says so
    scores = score_translations(translations, references, tokenize="char")
    lines = ["\nTen numbers that were not trained on:"]
    rows = zip(unseen["source"][:SHOWN], translations[:SHOWN], references[:SHOWN], strict=True)
    for source, translation, reference in rows:
        mark = "right" if translation == reference else f"WRONG, not {reference}"
        lines.append(f"  {source}\n    -> {translation}  ({mark})")
    lines += [f"\nAll {len(unseen):,} unseen numbers:", str(scores)]
    lines += [f"\nmodel folder: {folder}", _drawn_attention(folder), "\nNext:"]
    program, model = _program(), shlex.quote(str(folder))
    lines.append(f"  echo '{SENTENCE}' | {program} translate --model {model}")
    if importlib.util.find_spec("uvicorn") is None and Path.cwd() == CLONE:
        lines.append(f"  make app MODEL={model}")  # installs what the app needs
    else:
        lines.append(f"  {program} app --model {model}")
    return "\n".join(lines)


def _program() -> str:
    """How `hf-vanilla` of this environment is called from the working directory."""
    script = Path(sys.executable).with_name("hf-vanilla")
    if not script.is_file():
        return shlex.join([sys.executable, "-m", "hf_vanilla"])
    if shutil.which("hf-vanilla") == str(script):
        return "hf-vanilla"
    inside = script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if inside else script))


def _drawn_attention(folder: Path) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return f"no figure of attention: it needs matplotlib ({install_hint('plot')})"
    figure = plot_attention(
        PlotAttentionOptions(
            model=str(folder),
            sentence=SENTENCE,
            output=str(folder / "attention.png"),
            overwrite=True,
        )
    )
    return f"figure of attention: {figure}"
