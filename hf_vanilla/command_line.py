"""How a command runs one function of the package: options in, one line of error out."""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.utils.logging import disable_progress_bar

from .commands import INTERRUPTED_STATUS, USAGE_STATUS
from .options import UsageError, parse_options

logger = logging.getLogger(__name__)


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
