"""`hf-vanilla prepare`: tokenize a corpus once, in shards that training maps."""

import logging
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from hf_vanilla.data.corpus import BUILT_IN_CORPUS
from hf_vanilla.files import write_text
from hf_vanilla.loading import load_saved
from hf_vanilla.options import option

from .data import load_corpus
from .encoding import write_shards
from .options import PairOptions

logger = logging.getLogger(__name__)

SIDES = ("source", "target")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(PairOptions):
    """Tokenize a corpus into shards, by any number of processes; the same command resumes."""

    tokenizer: str = option(text="folder or Hub id of a tokenizer, as of train-tokenizer")
    output: str = option(text="folder of the shards")
    streaming: bool = option(
        default=False,
        text="read the dataset or the files without a copy on disk: once to count, once to write",
    )
    pairs_per_shard: int = option(200_000, "sentence pairs of a shard", at_least=1)
    part: int = option(1, "which of the parts this process writes, from 1", at_least=1)
    parts: int = option(1, "processes or machines that share the work", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part > self.parts:
            raise ValueError(f"part={self.part}, but parts={self.parts}: count the parts from 1")
        if self.streaming and self.train_source is None and self.dataset in (None, BUILT_IN_CORPUS):
            raise ValueError("streaming needs a dataset or train_source, not the built-in corpus")


def prepare_shards(options: PrepareOptions) -> Path:
    """Write the shards of a part that do not exist yet; returns the folder.

    Raises:
        ValueError: the data do not match the options, or the folder has other shards.
        OSError: a file cannot be read or written.
    """
    folder = Path(options.output)
    tokenizer = load_saved(AutoTokenizer, options.tokenizer)
    corpus = load_corpus(options, is_stream=options.streaming)
    cut = {"pairs_per_shard": options.pairs_per_shard, "part": options.part, "parts": options.parts}
    prepared = write_shards(corpus["train"], tokenizer, folder, **cut)
    if options.part == 1 and "validation" in corpus:  # two files, beside shards of this corpus
        rows, files = list(corpus["validation"]), [folder / f"validation.{side}" for side in SIDES]
        for side, file in zip(SIDES, files, strict=True):
            write_text(file, "".join(" ".join(row[side].split()) + "\n" for row in rows))
        logger.info("validation pairs: --validation_source %s --validation_target %s", *files)
    missing = sum(not prepared.path(folder, n).is_file() for n in range(prepared.shards))
    logger.info(
        "pairs: %d, shards: %d; %s",
        *(prepared.pairs, prepared.shards),
        f"{missing} are left to other parts" if missing else "complete",
    )
    return folder
