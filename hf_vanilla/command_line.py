"""How a script runs one function of the package: options in, one line of error out."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.utils.logging import disable_progress_bar

from .options import parse_options

logger = logging.getLogger(__name__)


def run(action: Callable[..., Any], *options: "type | Callable[[Sequence[str]], Any]") -> Any:
    """Call `action` with the options of the command line.

    A user's mistake ends in one line on stderr and exit status 1; Ctrl-C ends with status 130.

    Args:
        action: takes the parsed options.
        *options: dataclasses of options, or one function from arguments to what `action` takes.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_vanilla").setLevel(logging.INFO)
    # it tells at every checkpoint that tied weights are stored once, which is how it should be
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        arguments = sys.argv[1:]
        classes = [option for option in options if isinstance(option, type)]
        if classes:
            return action(*parse_options(classes, arguments))
        return action(*(read(arguments) for read in options))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except FileNotFoundError as error:
        sys.exit(f"error: {f'{error.filename}: no such file' if error.filename else error}")
    except (ValueError, OSError, ImportError, StrictDataclassError) as error:
        logger.debug("where it happened", exc_info=True)
        sys.exit(f"error: {' '.join(str(error).split())}")
