"""Fine-tune with transformers' `Seq2SeqTrainer` on sentence pairs."""

import copy
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml
from datasets import Dataset as TextRows
from torch.utils.data import Dataset
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)

from hf_vanilla.data.batching import PairCollator, TokenBatchSampler
from hf_vanilla.data.bleu import score_translations
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.hub.card import CARD_FILE, hub_id, languages_of, public_name
from hf_vanilla.hub.push import Repository, push_model
from hf_vanilla.options import Options, option

from .card import translation_card
from .encoding import EncodedPairs, LengthLimits, encode_pairs
from .loading import load_translator
from .precision import require_float
from .validation import validation_nll, validation_translations

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Options):
    """Which model to fine-tune on which files; `Seq2SeqTrainingArguments` say how."""

    _argument_group_name = "files and model"

    model: str = option(text="model folder or Hub id to start from")
    train_source: str = option(text="file of source sentences, plain or .gz")
    train_target: str = option(text="file of their translations, line by line")
    validation_source: str | None = option(None, "file of validation sentences")
    validation_target: str | None = option(None, "file of their translations")
    max_length: int = option(256, "tokens of a side; longer pairs are dropped")
    tokens_per_batch: int | None = option(
        None,
        (
            "tokens of either side in a micro-batch, padding included, in place of "
            "per_device_train_batch_size sentences"
        ),
    )
    source_language: str | None = option(
        None, "code for the model card, such as en; default: of the model's card"
    )
    target_language: str | None = option(
        None, "code for the model card, such as de; default: of the model's card"
    )
    model_license: str | None = option(None, "licence of the weights, for the model card")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.validation_source is None) != (self.validation_target is None):
            raise ValueError("give both validation_source and validation_target, or neither")
        if (self.source_language is None) != (self.target_language is None):
            raise ValueError("give both source_language and target_language, or neither")
        if self.tokens_per_batch is not None and self.tokens_per_batch < self.max_length:
            raise ValueError(
                f"tokens_per_batch={self.tokens_per_batch} is smaller than max_length="
                f"{self.max_length}: a batch must hold one sentence"
            )


class TokenBatches(Dataset):
    """A `train_dataset` for any `Trainer`, in which one item is one batch of a token budget (5.1).

    The Trainer needs no change: each item is a whole batch of sentences of similar length, and
    `PairCollator` pads it. Every epoch is shuffled by `data_seed`, or `seed`; each sentence is in
    exactly one batch of an epoch, every process gets the same number of batches, and a resumed run
    continues at the same batch.

        arguments = Seq2SeqTrainingArguments(
            "runs/mine", per_device_train_batch_size=1, train_sampling_strategy="sequential"
        )
        trainer = Seq2SeqTrainer(
            model,
            arguments,
            train_dataset=TokenBatches(encoded, arguments, tokens_per_batch=4096),
            data_collator=PairCollator(tokenizer.pad_token_id),
        )

    Args:
        pairs: encoded sentence pairs.
        arguments: of the Trainer that trains on them.
        tokens_per_batch: padded tokens of either side in a micro-batch, at most.

    Raises:
        ValueError: with these arguments the Trainer would make batches of batches or shuffle them
            a second time, or the budget is smaller than a sentence.

    Examples:
        >>> from datasets import Dataset
        >>> from transformers import Seq2SeqTrainingArguments
        >>> from hf_vanilla import TokenBatches, train_tokenizer
        >>> from hf_vanilla.text.encoding import LengthLimits, encode_pairs
        >>> tokenizer = train_tokenizer(["ein Haus", "a house"], vocab_size=270)
        >>> rows = Dataset.from_list([{"source": "ein Haus", "target": "a house"}])
        >>> arguments = Seq2SeqTrainingArguments(
        ...     "out", per_device_train_batch_size=1, train_sampling_strategy="sequential")
        >>> pairs = encode_pairs(rows, tokenizer, LengthLimits(20))
        >>> len(TokenBatches(pairs, arguments, tokens_per_batch=40))
        1
    """

    def __init__(
        self, pairs: EncodedPairs, arguments: TrainingArguments, *, tokens_per_batch: int
    ) -> None:
        wanted = {
            # one item, which is a whole batch; and one process per GPU
            "train_batch_size": 1,
            # epochs are shuffled here; with a random sampler the Trainer does not call set_epoch
            # in several processes or in a resumed run
            "train_sampling_strategy": "sequential",
            "dataloader_persistent_workers": False,  # such workers keep the first epoch's order
        }
        for name, value in wanted.items():
            if getattr(arguments, name) != value:
                raise ValueError(
                    f"{name}={getattr(arguments, name)!r}: batches of a token budget need {value!r}"
                )
        self._rows = pairs.rows.with_format("arrow")
        self.sampler = TokenBatchSampler(
            pairs.source_lengths,
            pairs.target_lengths,
            tokens_per_batch=tokens_per_batch,
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            multiple_of=arguments.world_size,
        )
        self._epoch = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the Trainer calls this before each."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> pa.Table:
        return self._rows[self.sampler.batch(self._epoch, index)]


def bleu_metrics(
    tokenizer: PreTrainedTokenizerBase,
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for `Seq2SeqTrainer` with `predict_with_generate`: BLEU and chrF."""

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        # batches and processes are joined with -100, which no tokenizer can decode
        texts = [
            tokenizer.batch_decode(
                np.where(ids < 0, tokenizer.pad_token_id, ids), skip_special_tokens=True
            )
            for ids in (prediction.predictions, prediction.label_ids)
        ]
        scores = score_translations(*texts)
        return {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}

    return compute


def finetune(options: FinetuneOptions, arguments: Seq2SeqTrainingArguments) -> Path:
    """Fine-tune a model on two files; returns the folder of the result.

    Raises:
        ValueError: the files or the model folder are not what they should be, or the output folder
            holds another run.
        OSError: a file cannot be read, or the Hub refuses the result.
    """
    recipe = given_options(options, arguments)
    arguments = own_arguments(options, arguments)
    model, tokenizer = load_translator(options.model)
    require_float(model, options.model)
    model = model.float()  # a small step is less than half a unit of bfloat16, and would be lost
    data = prepare_pairs(options, tokenizer, is_main=arguments.process_index == 0)
    trainer = train_on_pairs(model, tokenizer, data, options, arguments)
    write_result(trainer, data, options, recipe)
    trainer.accelerator.end_training()  # otherwise processes may crash at shutdown
    return Path(arguments.output_dir)


def own_arguments(
    options: FinetuneOptions, arguments: Seq2SeqTrainingArguments
) -> Seq2SeqTrainingArguments:
    """A copy of the Trainer's arguments that fits these options.

    Raises:
        ValueError: the output folder holds another run, or labels would be smoothed twice.
    """
    has_checkpoints = any(Path(arguments.output_dir).glob("checkpoint-*"))
    if has_checkpoints and not arguments.resume_from_checkpoint:
        raise ValueError(
            f"{arguments.output_dir} holds checkpoints of an earlier run: add "
            "--resume_from_checkpoint True to go on with it, or choose another output_dir"
        )
    if arguments.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor={arguments.label_smoothing_factor}: the model smooths by "
            "itself while it trains; leave it out, or change label_smoothing in the model's "
            "config.json"
        )
    arguments = copy.copy(arguments)
    if not torch.cuda.is_available():
        arguments.dataloader_pin_memory = False  # without a GPU it only warns
    if options.tokens_per_batch is not None:
        arguments.per_device_train_batch_size = 1
        arguments.train_sampling_strategy = "sequential"
    return arguments


@dataclass(frozen=True)
class FinetuneData:
    """Sentence pairs to train on and, where given, to validate on.

    Attributes:
        train: encoded training pairs.
        validation: encoded validation pairs; None without validation files.
        validation_text: the same as rows of `source` and `target`.
    """

    train: EncodedPairs
    validation: EncodedPairs | None
    validation_text: TextRows | None


def prepare_pairs(
    options: FinetuneOptions, tokenizer: PreTrainedTokenizerBase, *, is_main: bool
) -> FinetuneData:
    """Read and encode the files; the main process logs how many pairs were dropped.

    Raises:
        ValueError: the files do not correspond, are not text, or no pair is fit to be used.
        OSError: a file cannot be read.
    """
    limits = LengthLimits(options.max_length)
    texts, encoded = {}, {}
    for part in ("train", "validation"):
        files = getattr(options, f"{part}_source"), getattr(options, f"{part}_target")
        if files[0] is None or files[1] is None:
            continue
        for side, file in zip(("source", "target"), files, strict=True):
            if Path(file).is_dir():
                raise ValueError(
                    f"{part}_{side}={file} is a folder: give a text file, one sentence a line; "
                    "of a saved dataset write each column to a file first"
                )
        texts[part] = pairs_from_files(*files)
        try:
            encoded[part] = encode_pairs(texts[part], tokenizer, limits)
        except ValueError as error:  # no pair is left
            raise ValueError(f"{files[0]} and {files[1]}: {error}") from None
        if is_main:
            dropped = encoded[part].dropped.describe(limits)
            logger.info("%s: %d pairs; dropped: %s", part, len(encoded[part].rows), dropped)
    return FinetuneData(encoded["train"], encoded.get("validation"), texts.get("validation"))


def train_on_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: FinetuneData,
    options: FinetuneOptions,
    arguments: Seq2SeqTrainingArguments,
) -> Seq2SeqTrainer:
    """Train with `Seq2SeqTrainer`; returns it with the trained model."""
    use_cache = model.config.use_cache
    train_dataset: Any = data.train.rows
    if options.tokens_per_batch is not None:
        train_dataset = TokenBatches(
            data.train, arguments, tokens_per_batch=options.tokens_per_batch
        )
        if arguments.process_index == 0:
            logger.info("an epoch: %s", train_dataset.sampler.describe())
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=train_dataset,
        eval_dataset=None if data.validation is None else data.validation.rows,
        data_collator=PairCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        compute_metrics=bleu_metrics(tokenizer) if arguments.predict_with_generate else None,
    )
    newest = str(arguments.resume_from_checkpoint) == "True"
    trainer.train(resume_from_checkpoint=newest or arguments.resume_from_checkpoint)
    model.config.use_cache = use_cache  # the Trainer overwrites it
    return trainer


def write_result(
    trainer: Seq2SeqTrainer, data: FinetuneData, options: FinetuneOptions, recipe: dict[str, Any]
) -> None:
    """Measure the model, save it with code and card, and push it where the arguments say so.

    Args:
        trainer: after training.
        data: validation pairs are measured by all processes.
        options: for the card.
        recipe: the given options, for the card.
    """
    arguments, tokenizer = trainer.args, trainer.processing_class
    model = trainer.model
    nll = scores = None
    if data.validation is not None and data.validation_text is not None:
        collate = PairCollator(tokenizer.pad_token_id)
        measured = trainer.accelerator, model.eval()
        nll = validation_nll(
            *measured, data.validation, collate, tokens_per_batch=16 * options.max_length
        )
        found = validation_translations(*measured, tokenizer, data.validation_text)
        scores = score_translations(found, data.validation_text["target"][:], tokenize="13a")
    pushes, arguments.push_to_hub = (
        arguments.push_to_hub,
        False,
    )  # the Trainer knows no card of ours
    trainer.save_model()
    arguments.push_to_hub = pushes
    if trainer.is_world_process_zero():
        if nll is not None:
            logger.info("validation NLL %.4f per target token\n%s", nll, scores)
        facts = finetuning_facts(trainer, options, recipe)
        card = translation_card(**facts, scores=scores, validation_nll=nll)
        card.save(Path(arguments.output_dir) / CARD_FILE)
        logger.info("wrote the model to %s, in float32", arguments.output_dir)
        if pushes:
            to = Repository(
                repo_id=trainer.hub_model_id,
                private=arguments.hub_private_repo,
                revision=arguments.hub_revision,
                token=arguments.hub_token,
            )
            logger.info("pushed to %s", push_model(model, tokenizer, card, to, with_code=True))
    trainer.accelerator.wait_for_everyone()


def finetuning_facts(
    trainer: Seq2SeqTrainer,
    options: FinetuneOptions,
    recipe: dict[str, Any],
) -> dict[str, Any]:
    """The facts of a model trained by the Trainer, for `CardFacts`."""
    arguments, state = trainer.args, trainer.state
    source, target = options.source_language, options.target_language
    processes = arguments.world_size
    best = ""
    if arguments.load_best_model_at_end and state.best_global_step:
        best = (
            f" These are the weights of step {state.best_global_step:,}, the best by "
            f"{arguments.metric_for_best_model}."
        )
    return dict(
        title=Path(arguments.output_dir).resolve().name,
        dataset=f"{Path(options.train_source).name} and {Path(options.train_target).name}",
        languages=(source, target) if source and target else languages_of(options.model),
        license=options.model_license,
        parameters=trainer.model.num_parameters(),
        recipe=yaml.safe_dump(recipe, sort_keys=False),
        command="the options of `hf-vanilla finetune`",
        training=(
            f"Fine-tuned from {public_name(options.model)}: {state.global_step:,} steps of "
            f"`Seq2SeqTrainer`, {processes} process{'es' * (processes > 1)} on "
            f"{arguments.device.type}.{best}"
        ),
        base_model=hub_id(options.model),
    )


# of the machine and the moment, not of the training
NOT_IN_CARDS = {
    "output_dir",
    "hub_token",
    "resume_from_checkpoint",
    "disable_tqdm",
    "report_to",
    "accelerator_config",
    "dataloader_pin_memory",
    "gradient_checkpointing",  # an older name of activation_checkpointing
    "gradient_checkpointing_kwargs",
    "debug",
}


def given_options(options: FinetuneOptions, arguments: Seq2SeqTrainingArguments) -> dict[str, Any]:
    """What differs from the defaults, without what transformers derives from other arguments.

    The arguments themselves do not record what was given. A second object of them to compare with
    would reset the state of this process among the others, so the few derived ones are listed.
    """
    metric = arguments.metric_for_best_model
    derived = {
        "activation_checkpointing": False,
        "do_eval": str(arguments.eval_strategy.value) != "no",
        "eval_steps": arguments.logging_steps,
        "metric_for_best_model": "loss",
        "greater_is_better": metric is not None and not metric.endswith("loss"),
        "torch_compile_backend": "inductor",
    }
    given = {name: value for name, value in asdict(options).items() if value is not None}
    values = arguments.to_dict()
    for declared in fields(arguments):
        name, value = declared.name, values.get(declared.name)
        is_usual = value in (None, declared.default) or (name in derived and value == derived[name])
        if not is_usual and name not in NOT_IN_CARDS and value != []:
            given[name] = value
    return given
