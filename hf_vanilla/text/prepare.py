"""`hf-vanilla prepare`: tokenize a corpus once, in shards that training maps."""

import logging
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm
from transformers import AutoTokenizer

from hf_vanilla.data.corpus import BUILT_IN_CORPUS
from hf_vanilla.loading import load_saved
from hf_vanilla.options import Options, option

from .data import load_corpus
from .options import TranslationDataOptions
from .token_shards import read_prepared, shards_of_part, write_shards

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(Options):
    """Tokenize a corpus into shards, by any number of processes; the same command resumes."""

    tokenizer: str = option(text="folder or Hub id of a tokenizer, as of train-tokenizer")
    output: str = option(text="folder of the shards")
    dataset: str | None = option(None, f"'{BUILT_IN_CORPUS}' (built in), a Hub id, or a folder")
    dataset_config: str | None = option(None, "configuration of the Hub dataset, such as de-en")
    source_column: str = option("source", "column or language to translate from")
    target_column: str = option("target", "column or language to translate to")
    train_source: str | None = option(None, "file of source sentences, plain or .gz")
    train_target: str | None = option(None, "file of their translations, line by line")
    pairs_per_shard: int = option(200_000, "sentence pairs of a shard", at_least=1)
    part: int = option(1, "which of the parts this process writes, from 1", at_least=1)
    parts: int = option(1, "processes or machines that share the work", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part > self.parts:
            raise ValueError(f"part={self.part}, but parts={self.parts}: count the parts from 1")
        _ = self.text  # checks the options of the text

    @property
    def text(self) -> TranslationDataOptions:
        """The same options of the text as in a recipe.

        Raises:
            ValueError: they contradict each other.
        """
        return TranslationDataOptions(
            dataset=self.dataset,
            dataset_config=self.dataset_config,
            source_column=self.source_column,
            target_column=self.target_column,
            train_source=self.train_source,
            train_target=self.train_target,
        )


def prepare_shards(options: PrepareOptions) -> Path:
    """Write the shards of a part that do not exist yet; returns the folder.

    Raises:
        ValueError: the data do not match the options, or the folder has other shards.
        OSError: a file cannot be read or written.
    """
    folder = Path(options.output)
    tokenizer = load_saved(AutoTokenizer, options.tokenizer)
    pairs = load_corpus(options.text)["train"]
    cut = {"pairs_per_shard": options.pairs_per_shard, "part": options.part, "parts": options.parts}
    written = write_shards(pairs, tokenizer, folder, **cut)
    total = len(shards_of_part(len(pairs), **cut))
    for _ in tqdm(written, total=total, desc="Tokenizing", unit="shard"):
        pass
    prepared = read_prepared(folder)
    missing = sum(not prepared.path(folder, n).is_file() for n in range(prepared.shards))
    logger.info(
        "%d pairs in %d shards; %s",
        *(prepared.pairs, prepared.shards),
        f"{missing} are left to other parts" if missing else "complete",
    )
    return folder
