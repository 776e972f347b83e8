"""The commands of this package: one table for `hf-vanilla`, `python -m hf_vanilla` and `scripts/`.

This file imports only the standard library. `hf-vanilla --help` reads it by its path, without the
package around it, so that help does not wait for torch; so does the help of a command, from
`command_help.py` beside it.
"""

import difflib
import importlib
import importlib.util
import io
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PROGRAM, COMPLETION = "hf-vanilla", "completion"
USAGE_STATUS, INTERRUPTED_STATUS, CLOSED_PIPE_STATUS = 2, 130, 141

logger = logging.getLogger("hf_vanilla.commands")


@dataclass(frozen=True)
class Command:
    """One command, described by names so that nothing is imported before it runs.

    Attributes:
        help: what it does, in one line.
        action: `module:function` that does it.
        options: `module:name` of its option dataclasses, or of one function that parses the
            arguments.
    """

    help: str
    action: str
    options: tuple[str, ...]


COMMANDS = {
    "demo": Command(
        "train a small model in minutes, translate, score and draw",
        "hf_vanilla.app.demo:demo",
        ("hf_vanilla.app.demo:read_demo",),
    ),
    "train": Command(
        "train a model by a recipe, or resume a run",
        "hf_vanilla.training.run:train",
        ("hf_vanilla.recipes.recipe:read_recipe",),
    ),
    "finetune": Command(
        "fine-tune a model on two files, images or boxes",
        "hf_vanilla.tasks.dispatch:finetune_model",
        ("hf_vanilla.tasks.dispatch:read_finetuning",),
    ),
    "translate": Command(
        "translate a file or stdin, one sentence per line",
        "hf_vanilla.translation.file_translation:translate_file",
        ("hf_vanilla.translation.file_translation:TranslateOptions",),
    ),
    "translate-corpus": Command(
        "translate any number of lines; resumes after a stop",
        "hf_vanilla.translation.corpus_translation:translate_corpus",
        ("hf_vanilla.translation.corpus_translation:CorpusOptions",),
    ),
    "classify": Command(
        "label images: files, folders, or paths from stdin",
        "hf_vanilla.vision.classify:classify_files",
        ("hf_vanilla.vision.classify:read_classification",),
    ),
    "detect": Command(
        "find objects in images: files, folders, or paths from stdin",
        "hf_vanilla.vision.detect:detect_files",
        ("hf_vanilla.vision.detect:read_detection",),
    ),
    "inspect-data": Command(
        "report what is in a detection data set, and what is wrong",
        "hf_vanilla.data.detection_report:inspect_dataset",
        ("hf_vanilla.data.detection_report:InspectOptions",),
    ),
    "forecast": Command(
        "predict where the agents of a table of positions go",
        "hf_vanilla.trajectories.forecast:forecast_file",
        ("hf_vanilla.trajectories.forecast:ForecastOptions",),
    ),
    "evaluate": Command(
        "score a model: BLEU and chrF, image accuracy, AP, tracks",
        "hf_vanilla.tasks.dispatch:evaluate",
        ("hf_vanilla.tasks.dispatch:read_evaluation",),
    ),
    "score": Command(
        "log-probabilities of given translations",
        "hf_vanilla.translation.scoring:score_files",
        ("hf_vanilla.translation.scoring:ScoreOptions",),
    ),
    "align": Command(
        "word alignments of given translations, by attention",
        "hf_vanilla.translation.alignment_files:align_files",
        ("hf_vanilla.translation.alignment_files:AlignOptions",),
    ),
    "convert": Command(
        "convert models of OPUS-MT, fairseq, torch.nn, ViT, ...",
        "hf_vanilla.convert.formats:convert",
        ("hf_vanilla.convert.formats:read_conversion",),
    ),
    "export": Command(
        "write a model for CTranslate2",
        "hf_vanilla.convert.ctranslate2:export_ctranslate2",
        ("hf_vanilla.convert.ctranslate2:ExportCTranslate2Options",),
    ),
    "quantize": Command(
        "write a translation model with int8 weights, for CPUs",
        "hf_vanilla.convert.quantize:quantize_folder",
        ("hf_vanilla.convert.quantize:QuantizeOptions",),
    ),
    "plot": Command(
        "draw attention, positions, rates, curves, objects, tracks",
        "hf_vanilla.plots.plot:plot",
        ("hf_vanilla.plots.plot:read_plot",),
    ),
    "push": Command(
        "push a model folder to the Hub",
        "hf_vanilla.hub.push:push_folder",
        ("hf_vanilla.hub.push:PushOptions",),
    ),
    "app": Command(
        "use a model in a browser, and see its attention weights",
        "hf_vanilla.app.server:open_app",
        ("hf_vanilla.app.server:AppOptions",),
    ),
    "train-tokenizer": Command(
        "train a tokenizer on text files",
        "hf_vanilla.data.tokenizer_training:train_tokenizer_on_files",
        ("hf_vanilla.data.tokenizer_training:TrainTokenizerOptions",),
    ),
    "prepare": Command(
        "tokenize a corpus into shards that training reads",
        "hf_vanilla.tasks.translation_shards:prepare_shards",
        ("hf_vanilla.tasks.translation_shards:PrepareOptions",),
    ),
    "sweep": Command(
        "train the runs of a list with several seeds; resumable",
        "hf_vanilla.tasks.sweep:run_sweep",
        ("hf_vanilla.tasks.sweep:read_sweep_command",),
    ),
    "compare": Command(
        "compare the runs of a sweep: mean, deviation, bootstrap",
        "hf_vanilla.tasks.comparison:compare_runs",
        ("hf_vanilla.tasks.comparison:read_comparison",),
    ),
    "average": Command(
        "average the last or best checkpoints of a run",
        "hf_vanilla.training.averaging:average_run",
        ("hf_vanilla.training.averaging:AverageOptions",),
    ),
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
            "exit status: 0 done, 1 failed, 2 mistyped command, 130 interrupted",
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
            return _command_help().print_completion(options, helps)
        if name not in COMMANDS:
            print(f"error: {_unknown_command(name)}", file=sys.stderr)  # noqa: T201
            return USAGE_STATUS
        run_command(name, options)
    return 0


def run_command(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run one command and print what it returns; of several processes only the first prints.

    Args:
        name: a key of `COMMANDS`.
        arguments: what follows the name; None: `sys.argv[1:]`.

    Raises:
        SystemExit: as `run`.
    """
    rest = sys.argv[1:] if arguments is None else arguments
    _open_standard_streams()
    limit_threads(os.environ)
    sys.argv = [f"{PROGRAM} {name}", *rest]  # argparse takes the program's name from argv[0]
    command = COMMANDS[name]
    with _exit_without_traceback():
        parser = _command_help().fast_help(name, rest)
        if parser is not None:
            parser.print_help()
            parser.exit()
        result = run(command.action, *command.options)
        if result is not None and os.environ.get("RANK", "0") == "0":
            print(result, flush=True)  # noqa: T201


def run(
    action: str | Callable[..., Any], *options: "str | type | Callable[[Sequence[str]], Any]"
) -> Any:
    """Call `action` with the options of the command line, `sys.argv[1:]`; returns its result.

    Args:
        action: takes the parsed options; or its name, `module:function`.
        *options: option dataclasses, or one function from arguments to what `action` takes; or
            their names.

    Raises:
        SystemExit: after one line on stderr. Status 1: the command failed because of its input;
            2: the command line cannot be parsed; 130: Ctrl-C; 141: the reader of stdout is gone.
    """
    from huggingface_hub.errors import StrictDataclassError

    from hf_vanilla.options import UsageError, parse_options

    _set_up_logging()
    with _exit_without_traceback():
        try:
            readers, arguments = [_resolve(option) for option in options], sys.argv[1:]
            classes = [reader for reader in readers if isinstance(reader, type)]
            if classes:
                return _resolve(action)(*parse_options(classes, arguments))
            return _resolve(action)(*(read(arguments) for read in readers))
        except BrokenPipeError:
            raise  # an OSError, but not an error of the command
        except UsageError as error:
            print(f"error: {_one_line(error)}", file=sys.stderr)  # noqa: T201
            sys.exit(USAGE_STATUS)
        except FileNotFoundError as error:
            sys.exit(f"error: {f'{error.filename}: no such file' if error.filename else error}")
        except (ValueError, OSError, ImportError, StrictDataclassError) as error:
            logger.debug("traceback", exc_info=True)
            sys.exit(f"error: {_one_line(error)}")


def _command_help() -> ModuleType:
    """The module `command_help`, loaded by its path: an import would import the package."""
    name = "hf_vanilla_command_help"
    if name not in sys.modules:
        path = Path(__file__).with_name("command_help.py")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def limit_threads(environment: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Set variables that keep torch fast on busy and on limited CPUs, before torch is imported.

    Threads of OpenMP wait actively for each other, which takes the CPU from other processes: beside
    four busy processes, training is five times faster with a short wait (`GOMP_SPINCOUNT=3000`),
    and one tenth slower on an idle machine. Torch also starts one thread per CPU, although the CPU
    quota of a container may allow fewer. Variables that the user has set stay as they are.

    Args:
        environment: `os.environ`.
        root: where the file system begins.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = "3000"
    allowed = usable_cpus(root)
    # without a quota torch's own choice: one thread per physical core
    if allowed < _cpus_of_process() and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(allowed)


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use: those it is bound to, within the quota of its container.

    Args:
        root: where the file system begins.
    """
    quota = cpu_quota(root)
    allowed = _cpus_of_process()
    return allowed if quota is None else min(allowed, max(1, math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the control groups of this process allow; None without a limit, or off Linux."""
    quotas = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # version 2 has no controllers in this file and one limit in each parent folder
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = base / path.lstrip("/")
        for parent in (base, *(p for p in (folder, *folder.parents) if base in p.parents)):
            fields = _text(parent / "cpu.max").split() or [
                _text(parent / "cpu.cfs_quota_us").strip(),
                _text(parent / "cpu.cfs_period_us").strip(),
            ]
            if fields[0].isdecimal() and int(fields[1] or 0):  # without a limit: "max" or -1
                quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpus_of_process() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8")


def _set_up_logging() -> None:
    from transformers.utils.logging import disable_progress_bar

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
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
    close = difflib.get_close_matches(name, [*COMMANDS, COMPLETION], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(COMMANDS)}"
    return f"no command {name!r}; {hint}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _resolve(thing: Any) -> Any:
    """The object that `module:name` names; other things are returned as they are."""
    if not isinstance(thing, str):
        return thing
    module, name = thing.split(":")
    return getattr(importlib.import_module(module), name)
