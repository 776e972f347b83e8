"""The commands of this package: one table for `hf-vanilla`, `python -m hf_vanilla` and `scripts/`.

The standard library is all that stands here: `hf-vanilla --help` reads this file without the
package around it, so that it need not wait for torch.
"""

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PROGRAM = "hf-vanilla"
USAGE_STATUS, INTERRUPTED_STATUS, CLOSED_PIPE_STATUS = 2, 130, 141

logger = logging.getLogger("hf_vanilla.commands")


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
        "hf_vanilla.training.run:train",
        ("hf_vanilla.recipes.recipe:read_recipe",),
    ),
    "finetune": Command(
        "train a model further on two files, by Seq2SeqTrainer",
        "hf_vanilla.training.finetuning:finetune",
        ("hf_vanilla.training.finetuning:FinetuneOptions", "transformers:Seq2SeqTrainingArguments"),
    ),
    "translate": Command(
        "translate a file or stdin, a sentence a line",
        "hf_vanilla.translation.file_translation:translate_file",
        ("hf_vanilla.translation.file_translation:TranslateOptions",),
    ),
    "translate-corpus": Command(
        "translate any number of lines; goes on where it stopped",
        "hf_vanilla.translation.corpus_translation:translate_corpus",
        ("hf_vanilla.translation.corpus_translation:CorpusOptions",),
    ),
    "evaluate": Command(
        "score a model: BLEU and chrF",
        "hf_vanilla.translation.evaluation:evaluate_files",
        ("hf_vanilla.translation.evaluation:EvaluateOptions",),
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
        "hf_vanilla.plots.plot:plot",
        ("hf_vanilla.plots.plot:read_plot",),
    ),
    "push": Command(
        "push a model folder to the Hub",
        "hf_vanilla.hub.push:push_folder",
        ("hf_vanilla.hub.push:PushOptions",),
    ),
    "app": Command(
        "translate in a browser, and see where the model looks",
        "hf_vanilla.app.server:open_app",
        ("hf_vanilla.app.server:AppOptions",),
    ),
    "train-tokenizer": Command(
        "learn a vocabulary from text files",
        "hf_vanilla.data.tokenizer_training:train_tokenizer_on_files",
        ("hf_vanilla.data.tokenizer_training:TrainTokenizerOptions",),
    ),
    "average": Command(
        "make a model of a run's last or best checkpoints",
        "hf_vanilla.training.checkpointing:average_run",
        ("hf_vanilla.training.checkpointing:AverageOptions",),
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
        run_and_print(COMMANDS[name].action, COMMANDS[name].options)


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


def run(
    action: str | Callable[..., Any], *options: "str | type | Callable[[Sequence[str]], Any]"
) -> Any:
    """Call `action` with the options of the command line.

    A user's mistake ends in one line on stderr and exit status 1, or 2 where the command line
    cannot be read; Ctrl-C ends with status 130.

    Args:
        action: takes the parsed options; a name, `module:function`, is imported here.
        *options: dataclasses of options, or one function from arguments to what `action` takes; or
            their names.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers.utils.logging import disable_progress_bar

    from hf_vanilla.options import UsageError, parse_options

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_vanilla").setLevel(logging.INFO)
    # it tells at every checkpoint that tied weights are stored once, which is how it should be
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        readers, arguments = [_found(option) for option in options], sys.argv[1:]
        classes = [reader for reader in readers if isinstance(reader, type)]
        if classes:
            return _found(action)(*parse_options(classes, arguments))
        return _found(action)(*(read(arguments) for read in readers))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED_STATUS)
    except BrokenPipeError:
        raise  # no mistake: whoever read the output has seen enough
    except UsageError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE_STATUS)
    except FileNotFoundError as error:
        sys.exit(f"error: {f'{error.filename}: no such file' if error.filename else error}")
    except (ValueError, OSError, ImportError, StrictDataclassError) as error:
        logger.debug("where it happened", exc_info=True)
        sys.exit(f"error: {' '.join(str(error).split())}")


def run_and_print(action: str, options: Sequence[str]) -> None:
    """`run`, and its result on stdout if there is one; of several processes the first prints."""
    done = run(action, *options)
    if done is not None and os.environ.get("RANK", "0") == "0":
        print(done, flush=True)  # noqa: T201


def _found(thing: Any) -> Any:
    if not isinstance(thing, str):
        return thing
    module, name = thing.split(":")
    return getattr(importlib.import_module(module), name)
