"""A run of `translate_corpus` in its own process, which kills itself at a given batch."""

import logging
import os
import signal
import sys
from collections.abc import Callable

from hf_vanilla.options import parse_options
from hf_vanilla.text.corpus_translation import CorpusOptions, translate_corpus
from hf_vanilla.text.engines import TorchEngine

DIES_AT = "--dies_at="


def main(arguments: list[str]) -> None:
    batches = next((int(a.removeprefix(DIES_AT)) for a in arguments if a.startswith(DIES_AT)), 0)
    done = []

    def dying(decode: Callable[..., list]) -> Callable[..., list]:
        def decode_or_die(self: TorchEngine, rows: list[list[int]], *more: int) -> list:
            done.append(len(rows))
            if len(done) == batches:
                os.kill(os.getpid(), signal.SIGKILL)
            return decode(self, rows, *more)

        return decode_or_die

    for name in ("translate_rows", "n_best_rows"):
        setattr(TorchEngine, name, dying(getattr(TorchEngine, name)))
    logging.basicConfig(level=logging.INFO)
    rest = [a for a in arguments if not a.startswith(DIES_AT)]
    sys.stdout.write(f"{translate_corpus(parse_options(CorpusOptions, rest))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
