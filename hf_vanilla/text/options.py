"""What a recipe can set for translation: the text, the size of a step, decoding, measures."""

from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig

from hf_vanilla.data.corpus import BUILT_IN_CORPUS
from hf_vanilla.families import Measure
from hf_vanilla.file_values import shown, yaml_value
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.generation_vanilla import paper_decoding
from hf_vanilla.options import Options, option
from hf_vanilla.training.options import TrainRecipe

from .generation_fields import check_fields
from .mixture import MixtureCorpus, check_stages, read_mixture

NATS, SCORE = "nats per target token", "score, 0 to 100"
MEASURES = {
    "loss": Measure("training loss (smoothed targets)", NATS),
    "train_nll": Measure("training NLL", NATS),
    "nll": Measure("validation NLL", NATS, better="lower", log_name="validation_nll"),
    "bleu": Measure("validation BLEU", SCORE, better="higher", precision=2),
    "chrf": Measure("validation chrF", SCORE, better="higher", precision=2),
    "exact_match": Measure("validation exact match, %", SCORE, better="higher", precision=1),
}
PAIRED_OPTIONS = (
    ("train_source", "train_target"),
    ("validation_source", "validation_target"),
    ("source_language", "target_language"),
)
# of which one says what the other does, or takes the second pass of a batch
EXCLUSIVE_OPTIONS = (
    *(("prepared", other) for other in ("dataset", "train_source", "tokenizer")),
    *(("mixture", other) for other in ("dataset", "train_source", "prepared")),
    ("dataset", "train_source"),
    ("rdrop_alpha", "simcut_alpha"),
)


@dataclass(frozen=True, kw_only=True)
class PairOptions(Options):
    """A corpus of sentence pairs: a dataset or two files. The default is the built-in one."""

    dataset: str | None = option(
        None,
        f"'{BUILT_IN_CORPUS}' (built in), a Hub id, or a folder",
        of_data=True,
        chooses_data=True,
    )
    dataset_config: str | None = option(
        None, "configuration of the Hub dataset, such as de-en", of_data=True
    )
    source_column: str = option("source", "column or language to translate from")
    target_column: str = option("target", "column or language to translate to")
    train_source: str | None = option(
        None, "file of source sentences, plain or .gz", of_data=True, chooses_data=True
    )
    train_target: str | None = option(
        None, "file of their translations, line by line", of_data=True, chooses_data=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, other in EXCLUSIVE_OPTIONS:
            if given.get(name) and given.get(other):
                both = f"{name}={shown(given[name])} and {other}={shown(given[other])}"
                raise ValueError(f"{both}: leave one of them out")
        for pair in PAIRED_OPTIONS:
            missing = set(pair) - given.keys()
            if len(missing) == 1:
                (found,) = set(pair) - missing
                raise ValueError(
                    f"{found} is given, but not {missing.pop()}: give both or neither; data on the "
                    "command line replace all data of a recipe"
                )

    @property
    def train_files(self) -> list[str]:
        """The two files to train on; none where the data are no files."""
        files = self.train_source, self.train_target
        return [file for file in files if file is not None]


@dataclass(frozen=True, kw_only=True)
class TranslationDataOptions(PairOptions):
    """Text to train on, and how it becomes batches. The default is the built-in corpus."""

    _argument_group_name = "options of task translation"

    prepared: str | None = option(
        None,
        "folder of hf-vanilla prepare: its token ids are the training pairs",
        of_data=True,
        chooses_data=True,
    )
    mixture: list[dict[str, Any]] | None = option(
        None,
        "list of training corpora with weight, stage, tag and noise of each; in a file, a list",
        read=yaml_value,
        of_data=True,
        chooses_data=True,
    )
    validation_source: str | None = option(None, "file of validation sentences", of_data=True)
    validation_target: str | None = option(None, "file of their translations", of_data=True)
    source_language: str | None = option(None, "code for the model card, such as en", of_data=True)
    target_language: str | None = option(None, "code for the model card, such as de", of_data=True)
    tokenizer: str | None = option(None, "folder or Hub id of a tokenizer; default: train one")
    max_length: int = option(256, "tokens per side of a pair; longer pairs are dropped", at_least=1)
    max_length_ratio: float | None = option(
        None,
        "tokens of the longer side per token of the shorter; pairs beyond it are dropped; default: "
        "none is",
        at_least=1,
    )
    preprocessing_workers: int = option(
        1, "processes that tokenize the corpus, once", at_least=1, may_change=True
    )
    tokens_per_step: int = option(
        25_000, "tokens per side and optimizer step, padding included", at_least=1
    )
    # as on the paper's 8 GPUs. A batch holds sentences of similar length; a step of a single batch
    # would see one length at a time, and learns far worse than a step of several
    tokens_per_batch: int = option(
        3_125, "tokens per side, process and micro-batch, padding included", at_least=1
    )
    length_buckets: int | None = option(
        None,
        "pad batches to so few shapes, such as 24, which makes training faster: on a GPU, each is "
        "one CUDA graph; on a CPU, bf16 compiles less; default: any number",
        at_least=2,
    )
    rdrop_alpha: float = option(
        0.0,
        "R-Drop: weight of the divergence between two passes with different dropout, such as 5; 0: "
        "one pass",
        at_least=0,
    )
    simcut_alpha: float = option(
        0.0,
        "SimCut: weight of the divergence between a plain pass and one without a twentieth of the "
        "tokens, such as 3; 0: one pass",
        at_least=0,
    )
    bpe_dropout: float = option(
        0.0,
        "probability to leave out a merge of BPE in the training text, such as 0.1; 0: none is",
        at_least=0,
        below=1,
    )
    eval_sentences: int = option(
        200,
        "validation sentences translated for BLEU and the other scores; 0: none",
        at_least=0,
        may_change=True,
    )
    bleu_tokenize: str = option("13a", "sacreBLEU's tokenizer; none: text is tokenized already")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_data()
        if self.tokens_per_batch < self.max_length:
            raise ValueError(
                f"tokens_per_batch={self.tokens_per_batch} is smaller than max_length="
                f"{self.max_length}: a batch must hold one sentence"
            )

    def _check_data(self) -> None:
        if self.validation_source is not None and not self._trains_on_files:
            raise ValueError(
                f"validation_source={self.validation_source!r} needs training files beside it: "
                "give train_source and train_target, prepared or mixture"
            )
        if self.bpe_dropout and self.prepared is not None:
            raise ValueError(
                f"bpe_dropout={self.bpe_dropout:g} reads the text again in each epoch: give files "
                "or a dataset, without prepared"
            )

        is_noisy = any(corpus.is_noisy for corpus in self.corpora)
        if self.length_buckets and (self.bpe_dropout or is_noisy):
            raise ValueError(
                f"length_buckets={self.length_buckets} are of sentences that keep their lengths: "
                "leave out bpe_dropout, casing_noise and typo_noise"
            )

    @property
    def named_files(self) -> list[str]:
        """Files and folders to train and validate on."""
        of_mixture = [file for corpus in self.corpora for file in (corpus.source, corpus.target)]
        prepared = [] if self.prepared is None else [self.prepared]
        return [*self.train_files, *of_mixture, *prepared, *self.validation_files]

    def check_with(self, train: TrainRecipe) -> None:
        """Compare with the shared options.

        Raises:
            ValueError: a shared option needs a validation set or translations, and there are none,
                or an initial model has its own tokenizer.
        """
        if train.initial_model is not None and self.tokenizer is not None:
            raise ValueError(
                f"initial_model={train.initial_model!r} and tokenizer={self.tokenizer!r}: the "
                "model has its own tokenizer; leave tokenizer out"
            )
        needs_validation = train.average_best or train.patience
        of_text = train.best_by in ("bleu", "chrf", "exact_match")
        if needs_validation and of_text and not self.eval_sentences:
            raise ValueError(f"best_by={train.best_by!r} needs translations: set eval_sentences")
        if needs_validation and self._trains_on_files and self.validation_source is None:
            raise ValueError("average_best and patience need validation files")
        check_stages(self.corpora, train.max_steps)

    @property
    def _trains_on_files(self) -> bool:
        given = self.train_source, self.prepared, self.mixture
        return any(value is not None for value in given)

    @property
    def corpora(self) -> tuple[MixtureCorpus, ...]:
        """The corpora in `mixture`; none without it.

        Raises:
            ValueError: an entry is impossible.
        """
        return () if self.mixture is None else read_mixture(self.mixture)

    @property
    def validation_files(self) -> list[str]:
        """The two validation files, if there are some."""
        files = self.validation_source, self.validation_target
        return [file for file in files if file is not None]


def generation_config(config: VanillaConfig, decoding: dict[str, Any]) -> GenerationConfig:
    """The paper's decoding with a recipe's changes.

    Args:
        config: of the model.
        decoding: entries of the generation config that differ from the paper's decoding.

    Raises:
        ValueError: an entry is unknown or a value impossible.
    """
    check_fields("decoding", decoding)
    return changed_decoding(paper_decoding(config), decoding)


def changed_decoding(usual: GenerationConfig, decoding: dict[str, Any]) -> GenerationConfig:
    """A copy of a generation config with the entries of `decoding`."""
    kept = usual.to_diff_dict()
    if decoding.get("num_beams") == 1:  # transformers refuses to save them without a beam
        kept = {k: v for k, v in kept.items() if k not in ("early_stopping", "length_penalty")}
    return GenerationConfig(**{**kept, **decoding})
