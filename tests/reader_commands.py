"""What a page's command does in the tests: the same with smaller numbers, or as much as can be.

A command that no rule names runs as it is. A rule says why it cannot.
"""

import contextlib
import importlib
import importlib.metadata
import io
import os
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pages import ROOT, spoken

IMPORTED = (
    "accelerate.commands.launch",
    "matplotlib.pyplot",
    "sacrebleu",
    "torch.distributed.run",
    "transformers.trainer_seq2seq",
    "transformers.models.marian.modeling_marian",
    "hf_vanilla.commands",
    "hf_vanilla.translation.corpus_translation",
    "hf_vanilla.convert.ctranslate2",
    "hf_vanilla.convert.formats",
    "hf_vanilla.training.finetuning",
    "hf_vanilla.hub.push",
    "hf_vanilla.recipes.parameter_table",
    "hf_vanilla.training.run",
    "hf_vanilla.plots.attention",
)
# programs that run as they are
CONSOLE_SCRIPTS = ("hf", "hf-vanilla", "sacrebleu")


def import_all() -> None:
    """Pay for every import once; torch must have one thread only, or its forks would wait."""
    for name in IMPORTED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    corpus = sys.modules["hf_vanilla.data.corpus"]  # tens of thousands of numbers take a minute
    corpus.DENSE, corpus.SPARSE, corpus.EVALUATION_PAIRS = 100, 100, 12


# --- in place of running ------------------------------------------------------------------------


def only_options(words: list[str]) -> None:
    """Read the options as the script does, and stop there."""
    command_line = importlib.import_module("hf_vanilla.commands")
    usual = command_line.run

    def run(_action, *readers):
        usual(lambda *_: None, *readers)

    command_line.run = run
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # no result, no `None`
            run_as_it_is(words)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        command_line.run = usual


def only_help(words: list[str]) -> None:
    """Ask for help instead: the command and its subcommand are there."""
    words = [word for word in words if not word.startswith("-")]
    run_as_it_is([*words, "--help"])


def nothing(_words: list[str]) -> None:
    """Say nothing and succeed."""


def installed(words: list[str]) -> None:
    """What pip is told exists: extras of the project, and the pinned version of a package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    told = [word for word in words[words.index("install") + 1 :] if re.match(r"[\w.]+", word)]
    assert told
    for requirement in told:
        extras = re.search(r"\[(.+)\]", requirement)
        name = requirement.split("[")[0]
        if name in (".", project["name"]):
            unknown = set(extras[1].split(",") if extras else ()) - set(
                project["optional-dependencies"]
            )
            assert not unknown, f"{requirement}: no extra called {unknown}"
        elif "==" in requirement:
            assert requirement in pins, f"{requirement} is not what constraints.txt says"


def torch_from_its_index(words: list[str]) -> None:
    """The version is the one of constraints.txt."""
    index = words.index("--index-url")
    assert words[index + 1].startswith("https://download.pytorch.org/")
    installed(words[:index])


def downloaded(words: list[str]) -> None:
    """A file of that name is there: the archive in miniature."""
    name = urlsplit(words[-1]).path.rsplit("/", 1)[-1]
    shutil.copy(Path(os.environ["STAND_INS"]) / name, name)


def by_accelerate(words: list[str]) -> None:
    """Accelerate reads its options and its configuration; then one process runs the script."""
    launch = importlib.import_module("accelerate.commands.launch")
    told = launch.launch_command_parser().parse_args(words[2:])
    if told.config_file:
        config = importlib.import_module("accelerate.commands.config.config_args")
        config.load_config_from_file(told.config_file)
    module = ["-m"] if told.module else []
    run_command(["python", *module, told.training_script, *told.training_script_args])


def by_torchrun(words: list[str]) -> None:
    """Torchrun reads its options; then one process runs the script."""
    launcher = importlib.import_module("torch.distributed.run")
    told = launcher.get_args_parser().parse_args(words[1:])
    module = ["-m"] if told.module else []
    run_command(["python", *module, told.training_script, *told.training_script_args])


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What happens to commands that begin so.

    Attributes:
        begins: as `pages.spoken` says it.
        reason: why it does not run as it stands.
        adds: options put at its end, which make it small.
        instead: what happens instead.
        holds: the rule is for commands with this in them.
    """

    begins: str
    reason: str
    adds: str = ""
    instead: Callable[[list[str]], None] | None = None
    holds: str = ""

    def names(self, command: str) -> bool:
        return command.startswith(self.begins) and self.holds in command


TINY = (
    "--model.vocab_size 290 --model.d_model 16 --model.encoder_layers 1 --model.decoder_layers 1"
    " --model.encoder_attention_heads 2 --model.decoder_attention_heads 2"
    " --model.encoder_ffn_dim 32 --model.decoder_ffn_dim 24 --max_steps 6 --save_steps 1"
    " --tokens_per_step 512 --tokens_per_batch 512 --max_length 128 --eval_steps 3"
    " --eval_sentences 2 --use_cpu True --decoding.num_beams 2"
)
RULES = (
    Rule("scripts/train.py", "minutes to days", f"{TINY} --decoding.max_new_tokens 9"),
    Rule("scripts/demo.py", "two minutes", f"{TINY} --decoding.max_new_tokens 3"),
    Rule("scripts/finetune.py", "epochs", "--max_steps 2 --use_cpu True --report_to none"),
    Rule("scripts/app.py", "it serves until it is stopped", instead=only_options),
    Rule("scripts/translate_corpus.py", "Ray", instead=only_options, holds="--workers"),
    Rule("scripts/benchmarks/train.py", "6 processes, minutes", instead=only_options),
    Rule("scripts/benchmarks/generate.py", "minutes", instead=only_options),
    Rule("accelerate launch", "8 GPUs", instead=by_accelerate),
    Rule("torchrun", "two processes import torch anew", instead=by_torchrun),
    Rule("pip install torch", "hundreds of megabytes", instead=torch_from_its_index),
    Rule("pip install", "changes the environment of the tests", instead=installed),
    Rule("python -m venv", "the reader's environment is laid out", instead=nothing),
    Rule("python -m pytest", "these are the tests", instead=nothing),
    Rule("mypy", "part of make test", instead=nothing),
    Rule("ruff", "part of make test", instead=nothing),
    Rule("curl -LO https://dl.fbaipublicfiles.com/fairseq/", "a network", instead=downloaded),
    Rule("hf auth login", "asks for a token; the server here knows it", instead=only_help),
    Rule("hf upload", "the server here has no Spaces", instead=only_help),
)


# --- running ------------------------------------------------------------------------------------


def run_command(words: list[str]) -> None:
    """What the table says about this command, or the command itself."""
    command = spoken(words)
    for rule in RULES:
        if rule.names(command):
            if rule.instead is not None:
                rule.instead(words)
                return
            only_options(words)  # what is cut must have been right, too
            words = [*words, *rule.adds.split()]
            break
    run_as_it_is(words)


def run_as_it_is(words: list[str]) -> None:
    name, rest = Path(words[0]).name, words[1:]
    if name.startswith("python") and rest and rest[0].endswith(".py"):
        run_script(rest)
    elif name.startswith("python") and rest and rest[0] == "-m":
        run_module(rest[1:])
    elif name in CONSOLE_SCRIPTS:
        run_console_script([name, *rest])
    else:
        sys.exit(f"{spoken(words)}: no rule of tests/reader_commands.py says what this does")


def run_script(words: list[str]) -> None:
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")


def run_module(words: list[str]) -> None:
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def run_console_script(words: list[str]) -> None:
    """A program that pip installs; ours is the one of this tree, whatever is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    place = project.get("scripts", {}).get(words[0])
    if place is None:
        (entry,) = importlib.metadata.entry_points(group="console_scripts", name=words[0])
        place = entry.value
    module, function = place.split(":")
    sys.argv = words
    sys.path.insert(0, str(ROOT / "scripts"))  # a wheel brings some of these
    sys.exit(getattr(importlib.import_module(module), function)())
