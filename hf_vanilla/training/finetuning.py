"""Fine-tune by transformers' own `Seq2SeqTrainer`, with our rows, collator and loss as they are."""

import copy
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml
from torch.utils.data import Dataset
from transformers import (
    EvalPrediction,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)

from hf_vanilla.data.batching import PairCollator, TokenBatchSampler
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.data.encoding import EncodedPairs, LengthLimits, encode_pairs
from hf_vanilla.hub.push import CardFacts, model_card, push_card, told_languages
from hf_vanilla.models.saving_vanilla import code_beside_weights
from hf_vanilla.translation.evaluation import Scores, score_translations
from hf_vanilla.translation.translator import load_translator

from .validation import validation_nll, validation_scores

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """What to fine-tune, and on what; how is told by `Seq2SeqTrainingArguments`."""

    model: str = field(metadata={"help": "model folder or Hub id to start from"})
    train_source: str = field(metadata={"help": "file of source sentences, plain or .gz"})
    train_target: str = field(metadata={"help": "file of their translations, line by line"})
    validation_source: str | None = field(default=None, metadata={"help": "held-out sentences"})
    validation_target: str | None = field(default=None, metadata={"help": "their translations"})
    max_length: int = field(
        default=256, metadata={"help": "tokens a side may have; longer pairs are counted out"}
    )
    tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "tokens of either side per process and pass, padded, in place of "
            "per_device_train_batch_size sentences"
        },
    )
    source_language: str | None = field(
        default=None, metadata={"help": "code for the model card, such as en; None: as before"}
    )
    target_language: str | None = field(
        default=None, metadata={"help": "code for the model card, such as de; None: as before"}
    )
    model_license: str | None = field(
        default=None, metadata={"help": "licence of the weights, for the model card"}
    )

    def __post_init__(self) -> None:
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

    The Trainer stays as it is: it deals out items, which are whole batches of sentences of like
    length, and `PairCollator` pads them. Every epoch shuffles anew by `data_seed`, or `seed`; each
    sentence is in exactly one batch of an epoch, every process gets the same number of batches, and
    a resumed run goes on where it was.

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
        arguments: of the Trainer that will train on them.
        tokens_per_batch: padded tokens of either side per process and pass, at most.

    Raises:
        ValueError: the arguments would have the Trainer make batches of batches or shuffle them a
            second time, or the budget is smaller than a sentence.
    """

    def __init__(
        self, pairs: EncodedPairs, arguments: TrainingArguments, *, tokens_per_batch: int
    ) -> None:
        wanted = {
            # one item, which is a whole batch; and one process per GPU
            "train_batch_size": 1,
            # epochs are shuffled here; with a random order of its own the Trainer does not tell
            # several processes, or a resumed run, which epoch it is
            "train_sampling_strategy": "sequential",
            "dataloader_persistent_workers": False,  # they would stay in the first epoch
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
        """Choose the epoch; the Trainer does so before each."""
        self._epoch = epoch

    def __getitem__(self, place: int) -> pa.Table:
        return self._rows[self.sampler.batch(self._epoch, place)]


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
        OSError: a file cannot be read.
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
    if not torch.cuda.is_available():
        arguments.dataloader_pin_memory = False  # it would only warn
    model, tokenizer = load_translator(options.model)
    decoding, use_cache = copy.deepcopy(model.generation_config), model.config.use_cache
    pairs = {"train": pairs_from_files(options.train_source, options.train_target)}
    if options.validation_source is not None and options.validation_target is not None:
        pairs["eval"] = pairs_from_files(options.validation_source, options.validation_target)
    encoded = {
        part: encode_pairs(text, tokenizer, LengthLimits(options.max_length))
        for part, text in pairs.items()
    }
    collate = PairCollator(tokenizer.pad_token_id)
    train_dataset = _train_dataset(encoded["train"], options, arguments)
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=train_dataset,
        eval_dataset=encoded["eval"].rows if "eval" in encoded else None,
        data_collator=collate,
        processing_class=tokenizer,
        compute_metrics=bleu_metrics(tokenizer) if arguments.predict_with_generate else None,
    )
    newest = str(arguments.resume_from_checkpoint) == "True"
    trainer.train(resume_from_checkpoint=newest or arguments.resume_from_checkpoint)
    # while it trains and evaluates, the Trainer overwrites both with defaults of its own
    model.generation_config, model.config.use_cache = decoding, use_cache
    nll = scores = None
    if "eval" in encoded:
        told = trainer.accelerator, model.eval()
        size = {"tokens_per_batch": 16 * options.max_length}
        nll = validation_nll(*told, encoded["eval"], collate, **size)
        scores = validation_scores(*told, tokenizer, pairs["eval"], bleu_tokenize="13a")
    with code_beside_weights(model, tokenizer):
        trainer.save_model()
    if trainer.is_world_process_zero():
        _tell(_card_facts(options, arguments, trainer, nll, scores), arguments, trainer)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()  # processes that part without a word may crash at their end
    return Path(arguments.output_dir)


def _tell(facts: CardFacts, arguments: Seq2SeqTrainingArguments, trainer: Seq2SeqTrainer) -> None:
    """What came of it: on the terminal, and in the card of the folder and of the Hub."""
    if facts.validation_nll is not None:
        logger.info("validation NLL %.4f per target token\n%s", facts.validation_nll, facts.scores)
    logger.info("wrote the model to %s", arguments.output_dir)
    card = model_card(facts)
    card.save(Path(arguments.output_dir) / "README.md")
    if arguments.push_to_hub:  # over the one that the Trainer has written and pushed
        push_card(card, trainer.hub_model_id)


def _train_dataset(
    pairs: EncodedPairs, options: FinetuneOptions, arguments: Seq2SeqTrainingArguments
) -> Any:
    """Rows, or batches of a token budget; the counts are told by the main process."""
    is_main = arguments.process_index == 0
    if is_main:
        told = pairs.dropped.describe(LengthLimits(options.max_length))
        logger.info("train: %d pairs; left out: %s", len(pairs.rows), told)
    if options.tokens_per_batch is None:
        return pairs.rows
    arguments.per_device_train_batch_size = 1
    arguments.train_sampling_strategy = "sequential"
    batches = TokenBatches(pairs, arguments, tokens_per_batch=options.tokens_per_batch)
    if is_main:
        logger.info("an epoch: %s", batches.sampler.describe())
    return batches


def _card_facts(
    options: FinetuneOptions,
    arguments: Seq2SeqTrainingArguments,
    trainer: Seq2SeqTrainer,
    nll: float | None,
    scores: Scores | None,
) -> CardFacts:
    # not those of new arguments: making them would tell this process that it is alone
    usual = {f.name: f.default for f in fields(arguments) if f.default is not None}
    told = arguments.to_sanitized_dict()
    changed = {k: v for k, v in asdict(options).items() if v is not None}
    # what transformers makes of an option that nobody gave
    made = {"dataloader_pin_memory"} | {name for name, value in told.items() if str(value) == "[]"}
    given = usual.keys() & told.keys() - made
    changed |= {k: told[k] for k in usual if k in given and str(told[k]) != str(usual[k])}
    source, target = options.source_language, options.target_language
    step, processes = trainer.state.global_step, arguments.world_size
    return CardFacts(
        model_name=Path(arguments.output_dir).resolve().name,
        corpus=f"{Path(options.train_source).name} and {Path(options.train_target).name}",
        languages=(source, target) if source and target else told_languages(options.model),
        license=options.model_license,
        parameters=trainer.model.num_parameters(),
        recipe=yaml.safe_dump(changed, sort_keys=False),
        command="the options of `hf-vanilla finetune`",
        training=(
            f"Fine-tuned from {options.model}: {step:,} steps of `Seq2SeqTrainer`, "
            f"{processes} process{'es' * (processes > 1)} on {arguments.device.type}."
        ),
        scores=scores,
        validation_nll=nll,
        base_model=None if Path(options.model).exists() else options.model,
    )
