"""The commands of this package: one table for `hf-vanilla`, `python -m hf_vanilla` and `scripts/`.

The standard library is all that stands here: `hf-vanilla --help` reads this file without the
package around it, so that it need not wait for torch.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

PROGRAM = "hf-vanilla"
USAGE_STATUS, INTERRUPTED_STATUS, CLOSED_PIPE_STATUS = 2, 130, 141


@dataclass(frozen=True)
class Command:
    """One command, told without importing it.

    Attributes:
        help: what it does, in a line.
        action: `module:function` that does it.
        options: `module:name` of its dataclasses of options, or of one function that reads the
            arguments.
    """

    help: str
    action: str
    options: tuple[str, ...]


COMMANDS = {
    "train": Command(
        "train a model by a recipe, or go on with it",
        "hf_vanilla.training:train",
        ("hf_vanilla.recipe:read_recipe",),
    ),
    "finetune": Command(
        "train a model further on two files, by Seq2SeqTrainer",
        "hf_vanilla.finetuning:finetune",
        ("hf_vanilla.finetuning:FinetuneOptions", "transformers:Seq2SeqTrainingArguments"),
    ),
    "translate": Command(
        "translate a file or stdin, a sentence a line",
        "hf_vanilla.translation:translate_file",
        ("hf_vanilla.translation:TranslateOptions",),
    ),
    "translate-corpus": Command(
        "translate any number of lines; goes on where it stopped",
        "hf_vanilla.corpus_translation:translate_corpus",
        ("hf_vanilla.corpus_translation:CorpusOptions",),
    ),
    "evaluate": Command(
        "score a model: BLEU and chrF",
        "hf_vanilla.evaluation:evaluate_files",
        ("hf_vanilla.evaluation:EvaluateOptions",),
    ),
    "convert": Command(
        "convert models of OPUS-MT, fairseq and torch.nn.Transformer",
        "hf_vanilla.convert.formats:convert",
        ("hf_vanilla.convert.formats:read_conversion",),
    ),
    "export": Command(
        "write a model for CTranslate2",
        "hf_vanilla.convert.ctranslate2:export_ctranslate2",
        ("hf_vanilla.convert.ctranslate2:ExportCTranslate2Options",),
    ),
    "plot": Command(
        "draw attention, positions, learning rates, curves, BLEU",
        "hf_vanilla.plot:plot",
        ("hf_vanilla.plot:read_plot",),
    ),
    "push": Command(
        "push a model folder to the Hub",
        "hf_vanilla.hub:push_folder",
        ("hf_vanilla.hub:PushOptions",),
    ),
    "app": Command(
        "translate in a browser, and see where the model looks",
        "hf_vanilla.app:open_app",
        ("hf_vanilla.app:AppOptions",),
    ),
    "train-tokenizer": Command(
        "learn a vocabulary from text files",
        "hf_vanilla.tokenizer_training:train_tokenizer_on_files",
        ("hf_vanilla.tokenizer_training:TrainTokenizerOptions",),
    ),
    "average": Command(
        "make a model of a run's last or best checkpoints",
        "hf_vanilla.checkpointing:average_run",
        ("hf_vanilla.checkpointing:AverageOptions",),
    ),
}


def overview() -> str:
    """The help of the whole: every command in a line."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND [OPTIONS]",
            "",
            'The Transformer of "Attention Is All You Need" (2017).',
            "",
            "commands:",
            *lines,
            "",
            f"{PROGRAM} COMMAND --help   tells a command's options",
            f"{PROGRAM} --version        tells the version",
            "",
            "exit status: 0 done, 1 it cannot be done, 2 a mistyped command, 130 interrupted",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `hf-vanilla` with the arguments of the command line, or with others.

    Returns:
        The exit status of what ends well, or of a command that is missing or unknown; other
        mistakes raise `SystemExit` with theirs.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    with _quiet_ends():
        if given[:1] in (["-h"], ["--help"], ["help"]):
            print(overview(), flush=True)  # noqa: T201
            return 0
        if given == ["--version"]:
            package = importlib.import_module("hf_vanilla")
            print(f"{PROGRAM} {package.__version__}")  # noqa: T201
            return 0
        if not given:
            print(overview(), file=sys.stderr)  # noqa: T201
            return USAGE_STATUS
        name, *options = given
        if name not in COMMANDS:
            print(f"error: {_unknown(name)}", file=sys.stderr)  # noqa: T201
            return USAGE_STATUS
        run_command(name, options)
    return 0


def run_command(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run one command of the table, and print what it returns.

    Args:
        name: a key of `COMMANDS`.
        arguments: those behind the name; None: those of the command line.
    """
    rest = sys.argv[1:] if arguments is None else arguments
    sys.argv = [f"{PROGRAM} {name}", *rest]  # the first is what help and errors call the program
    with _quiet_ends():
        command_line = importlib.import_module("hf_vanilla.command_line")
        command_line.run_and_print(COMMANDS[name].action, COMMANDS[name].options)


@contextmanager
def _quiet_ends() -> Iterator[None]:
    """Ctrl-C and a reader that has seen enough, such as `head`, end without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED_STATUS)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter's last flush would fail
        sys.exit(CLOSED_PIPE_STATUS)


def _unknown(name: str) -> str:
    if name.startswith("-"):
        return f"the command comes first: {PROGRAM} COMMAND {name}"
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"no command {name!r}; {hint}"
