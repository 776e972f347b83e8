"""The demo: train on the built-in corpus, translate unseen numbers, score, draw."""

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.corpus import built_in_corpus
from hf_vanilla.options import Options, UsageError, install_hint, option, parse_options
from hf_vanilla.training.recipe import Recipe, recipe_of
from hf_vanilla.training.run import train

from .loading import load_translator
from .plot import PlotAttentionOptions, plot_attention
from .translator import translate

RECIPE = "numbers"
SENTENCE = "seven hundred forty-two thousand three hundred nineteen"
SHOWN = 10
CLONE = Path(__file__).resolve().parents[2]  # if the package is in one


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Train on the built-in number words, translate unseen numbers, score and draw."""

    output_dir: str = option("runs/demo", "folder of the run")
    max_steps: int = option(600, "optimizer steps", at_least=1)
    eval_sentences: int = option(200, "sentences translated at each validation; 0: none")
    seed: int = option(0, "of weights, order and dropout")
    use_cpu: bool = option(default=False, text="train on the CPU even where there is a GPU")


def read_demo(arguments: Sequence[str]) -> Recipe:
    """The recipe of the demo with options from a command line.

    Raises:
        ValueError: an option is unknown or invalid.
    """
    all_options = f"hf-vanilla train --recipe {RECIPE} has all options of a training"
    try:
        options = parse_options(DemoOptions, arguments, epilog=f"{all_options}.")
    except UsageError as error:
        raise UsageError(f"{error}; {all_options}") from None
    return recipe_of({"recipe": RECIPE, **asdict(options)})


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
