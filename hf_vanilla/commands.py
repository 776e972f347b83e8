"""The commands of this package: one table for `hf-vanilla`, `python -m hf_vanilla` and `scripts/`.

This file imports only the standard library. `hf-vanilla --help` reads it by its path, without the
package around it, so that help does not wait for torch; so are `command_help.py` and `cpus.py`.
"""

import difflib
import importlib
import importlib.util
import io
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

PROGRAM, COMPLETION = "hf-vanilla", "completion"
OUT_OF_MEMORY = r"out of memory.|can't allocate memory:"  # torch's words for a GPU and a CPU
USAGE_STATUS, INTERRUPTED_STATUS, CLOSED_PIPE_STATUS = 2, 130, 141

logger = logging.getLogger("hf_vanilla.commands")


@dataclass(frozen=True)
class Command:
    """One command, described by names so that nothing is imported before it runs.

    Attributes:
        help: what it does, in one line.
        action: `module:function` that does it.
        options: `module:name` of its option dataclass, or of a function that parses the arguments.
    """

    help: str
    action: str
    options: str


def _command(help: str, parts: str) -> Command:
    """A command whose parts, `MODULE:ACTION,OPTIONS`, are in one module of this package."""
    module, names = parts.split(":")
    action, options = (f"hf_vanilla.{module}:{name}" for name in names.split(","))
    return Command(help, action, options)


COMMANDS = {
    "demo": _command(
        "train a small model in minutes, translate, score and draw", "text.demo:demo,read_demo"
    ),
    "train": Command(
        "train a model by a recipe, resume or fine-tune one",
        "hf_vanilla.training.run:train",
        "hf_vanilla.training.recipe:read_training",
    ),
    "translate": _command(
        "translate a file or stdin, one sentence per line",
        "text.file_translation:translate_file,TranslateOptions",
    ),
    "translate-corpus": _command(
        "translate any number of lines; resumes after a stop",
        "text.corpus_translation:translate_corpus,CorpusOptions",
    ),
    "classify": _command(
        "label images: files, folders, or paths from stdin",
        "images.classifier:classify_files,read_classification",
    ),
    "detect": _command(
        "find objects in images: files, folders, or paths from stdin",
        "objects.detector:detect_files,read_detection",
    ),
    "inspect-data": _command(
        "report what is in a detection data set, and what is wrong",
        "objects.report:inspect_dataset,InspectOptions",
    ),
    "forecast": _command(
        "predict where the agents of a table of positions go",
        "tracks.forecast:forecast_file,ForecastOptions",
    ),
    "evaluate": _command(
        "score a model: BLEU and chrF, image accuracy, AP, tracks",
        "training.validation:evaluate,read_evaluation",
    ),
    "score": _command(
        "log-probabilities of given translations", "text.pair_files:score_files,ScoreOptions"
    ),
    "align": _command(
        "word alignments of given translations, by attention",
        "text.pair_files:align_files,AlignOptions",
    ),
    "convert": _command(
        "convert models of OPUS-MT, fairseq, torch.nn, ViT, ...",
        "convert.formats:convert,read_conversion",
    ),
    "export": _command(
        "write a model for CTranslate2 or ONNX Runtime", "convert.export:export,read_export"
    ),
    "quantize": _command(
        "write a translation model with int8 weights, for CPUs",
        "convert.export:quantize_folder,QuantizeOptions",
    ),
    "distill": _command(
        "train a small fast student from a teacher, in stages",
        "convert.distill:distill,DistillOptions",
    ),
    "plot": _command(
        "draw attention, curves, patches, objects, tracks", "plots.figures:plot,read_plot"
    ),
    "push": _command("push a model folder to the Hub", "hub.push:push_folder,PushOptions"),
    "serve": _command(
        "serve models over HTTP, with the API of LibreTranslate", "serve:serve,ServeOptions"
    ),
    "app": _command(
        "use a model in a browser, and see its attention weights", "serve:open_app,AppOptions"
    ),
    "page": _command(
        "write a page that translates in a browser without a server",
        "text.static_page:write_page,PageOptions",
    ),
    "train-tokenizer": _command(
        "train a tokenizer on text files",
        "text.tokenizer_training:train_tokenizer_on_files,TrainTokenizerOptions",
    ),
    "prepare": _command(
        "tokenize a corpus into shards that training reads",
        "text.prepare:prepare_shards,PrepareOptions",
    ),
    "sweep": _command(
        "train the runs of a list with several seeds; resumable",
        "training.sweep:run_sweep,read_sweep_command",
    ),
    "compare": _command(
        "compare the runs of a sweep: mean, deviation, bootstrap",
        "training.comparison:compare_runs,read_comparison",
    ),
    "average": _command(
        "average the last or best checkpoints of a run",
        "training.checkpointing:average_run,AverageOptions",
    ),
}

REMOVED = {
    "finetune": f"use {PROGRAM} train --initial_model MODEL with the data options of train, or "
    "transformers' Trainer as scripts/finetune.py does"
}


def overview() -> str:
    """The text of `hf-vanilla --help`: one line per command."""
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
            f"{PROGRAM} COMMAND --help    lists the options of a command",
            f"{PROGRAM} completion SHELL  prints completions for bash, zsh or fish",
            f"{PROGRAM} --version         prints the version",
            "",
            "exit status: 0 done, 1 failed, 2 mistyped command, 130 Ctrl-C, 143 SIGTERM",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `hf-vanilla`.

    Args:
        arguments: what follows `hf-vanilla`; None: `sys.argv[1:]`.

    Returns:
        The exit status: 0, or 2 for a missing or unknown command.

    Raises:
        SystemExit: any other error, with its exit status.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with _exit_without_traceback():
        if arguments[:1] in (["-h"], ["--help"], ["help"]):
            print(overview(), flush=True)  # noqa: T201
            return 0
        if arguments == ["--version"]:
            package = importlib.import_module("hf_vanilla")
            print(f"{PROGRAM} {package.__version__}")  # noqa: T201
            return 0
        if not arguments:
            print(overview(), file=sys.stderr)  # noqa: T201
            return USAGE_STATUS
        name, *options = arguments
        if name == COMPLETION:
            helps = {name: command.help for name, command in COMMANDS.items()}
            return _beside("command_help").print_completion(options, helps)
        if name not in COMMANDS:
            print(f"error: {_unknown_command(name)}", file=sys.stderr)  # noqa: T201
            return USAGE_STATUS
        run_command(name, options)
    return 0


def run_command(name: str, arguments: Sequence[str]) -> None:
    """Run one command and print what it returns; of several processes only the first prints.

    Args:
        name: a key of `COMMANDS`.
        arguments: what follows the name.

    Raises:
        SystemExit: as `run`.
    """
    _open_standard_streams()
    _beside("cpus").limit_torch(os.environ)
    sys.argv = [f"{PROGRAM} {name}", *arguments]  # argparse takes the program's name from argv[0]
    command = COMMANDS[name]
    with _exit_without_traceback():
        parser = _beside("command_help").fast_help(name, arguments)
        if parser is not None:
            parser.print_help()
            parser.exit()
        result = run(command.action, command.options)
        if result is not None and os.environ.get("RANK", "0") == "0":
            print(result, flush=True)  # noqa: T201


def run(
    action: str | Callable[..., Any], options: "str | type | Callable[[Sequence[str]], Any]"
) -> Any:
    """Call `action` with the options of the command line, `sys.argv[1:]`; returns its result.

    Args:
        action: takes the parsed options; or its name, `module:function`.
        options: option dataclass, or a function from arguments to what `action` takes; or its name.

    Raises:
        SystemExit: after one line on stderr. Status 1: the command failed because of its input;
            2: the command line cannot be parsed; 130: Ctrl-C; 141: the reader of stdout is gone.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import dynamic_module_utils

    from hf_vanilla.options import UsageError, install_hint, parse_options

    _set_up_logging()
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # or it asks on stdin, which is often the input
    with _exit_without_traceback():
        try:
            read = _resolve(options)
            if isinstance(read, type):
                read = partial(parse_options, read)
            return _resolve(action)(read(sys.argv[1:]))
        except BrokenPipeError:
            raise  # an OSError, but not an error of the command
        except UsageError as error:
            lines = [f"error: {_one_line(error)}", *(f"  {line}" for line in error.examples)]
            print("\n".join(lines), file=sys.stderr)  # noqa: T201
            sys.exit(USAGE_STATUS)
        except (FileNotFoundError, IsADirectoryError) as error:
            reason = f"{error.filename}: {str(error.strerror).lower()}"
            sys.exit(f"error: {reason if error.filename else error}")
        except (ValueError, OSError, ImportError, SafetensorError, StrictDataclassError) as error:
            logger.debug("traceback", exc_info=True)
            # the remedy of transformers' message is not that of this package
            if re.search("requires the PIL library|No module named 'PIL'", str(error)):
                sys.exit(f"error: images need Pillow: {install_hint('vision')}")
            sys.exit(f"error: {_one_line(error)}")
        except (MemoryError, RuntimeError) as error:
            sys.exit(f"error: {_lack_of_memory(error)}")


def _beside(module: str) -> ModuleType:
    """A module of this folder, loaded by its path: an import would import the package."""
    name = f"hf_vanilla_{module}"
    if name not in sys.modules:
        path = Path(__file__).with_name(f"{module}.py")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: cannot be loaded")
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        sys.modules[name] = made
    return sys.modules[name]


def _open_standard_streams() -> None:
    """Make stdout UTF-8, as all files are, and streams that the caller has closed harmless.

    Raises:
        SystemExit: stdout is closed.
    """
    for number in range(3):  # or the next files that are opened would become stdin or stdout
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stdout is None:
        sys.exit("error: stdout is closed: redirect it to a file or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # names of files may be no UTF-8
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


class LinesAboveBars(logging.StreamHandler):
    """Writes log lines; on a terminal, above the progress bars instead of in their lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        if self.stream is None or not self.stream.isatty():
            super().emit(record)
            return
        from tqdm import tqdm  # here, since `--help` needs none

        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


def _set_up_logging() -> None:
    from transformers.utils.logging import disable_progress_bar

    lines = LinesAboveBars()
    if os.environ.get("RANK", "0") != "0":  # the first process logs what is the same in all
        same = "hf_vanilla.training.recipe"
        lines.addFilter(lambda record: record.levelno > logging.INFO and record.name != same)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[lines])
    logging.getLogger("hf_vanilla").setLevel(logging.INFO)
    # it warns at every checkpoint that tied weights are stored once, which is intended
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    disable_progress_bar()


@contextmanager
def _exit_without_traceback() -> Iterator[None]:
    """Exit quietly on Ctrl-C, and when the reader of stdout is gone (`hf-vanilla ... | head`)."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED_STATUS)
    except BrokenPipeError:
        # the interpreter flushes stdout once more at its end, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(CLOSED_PIPE_STATUS)


def _unknown_command(name: str) -> str:
    if name.startswith("-"):
        return f"the command comes first: {PROGRAM} COMMAND {name}"
    if name in REMOVED:
        return f"no command {name!r} any more; {REMOVED[name]}"
    close = difflib.get_close_matches(name, [*COMMANDS, COMPLETION], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(COMMANDS)}"
    return f"no command {name!r}; {hint}"


def _lack_of_memory(error: Exception) -> str:
    """One line for a lack of memory; any other error is raised again."""
    found = re.search(OUT_OF_MEMORY, str(error))
    if found is None and isinstance(error, RuntimeError):
        raise error
    logger.debug("traceback", exc_info=True)
    detail = textwrap.shorten(str(error)[found.end() if found else 0 :], 120, placeholder=" ...")
    return (
        f"out of memory: {detail or 'no details'}: options with batch or at_once in their name "
        "take less at a time (--help lists them)"
    )


def _one_line(error: BaseException) -> str:
    from huggingface_hub.errors import StrictDataclassError

    if isinstance(error, StrictDataclassError):  # of a config; it only adds the validator's name
        error = error.__cause__ or error
    if isinstance(error, NotADirectoryError | FileExistsError) and error.filename:
        path = Path(os.fsdecode(error.filename))
        for file in (each for each in (path, *path.parents) if each.is_file()):
            return f"{file} is a file, and a folder is needed there: choose another name"
    return " ".join(str(error).split())


def _resolve(thing: Any) -> Any:
    """The object that `module:name` names; other things are returned as they are."""
    from hf_vanilla.families import load_part

    return load_part(thing) if isinstance(thing, str) else thing
