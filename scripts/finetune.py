"""Fine-tune a translation model on two files by transformers' Seq2SeqTrainer.

    python scripts/finetune.py --model runs/mine --output_dir runs/finetuned \
        --train_source train.en --train_target train.de \
        --validation_source val.en --validation_target val.de --learning_rate 1e-4 \
        --num_train_epochs 3 --eval_strategy epoch --predict_with_generate True

Every field of Seq2SeqTrainingArguments is an option too. `hf-vanilla train --initial_model`
fine-tunes by a recipe instead.
"""

from dataclasses import dataclass, field

from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_vanilla import PairCollator, TokenBatches, bleu_metrics  # also registers the model
from hf_vanilla.data.corpus import pairs_from_files
from hf_vanilla.text.encoding import LengthLimits, encode_pairs


@dataclass
class Options:
    """Model and files."""

    model: str = field(metadata={"help": "model folder or Hub id to start from"})
    train_source: str = field(metadata={"help": "source sentences, one a line"})
    train_target: str = field(metadata={"help": "their translations, line by line"})
    validation_source: str | None = None
    validation_target: str | None = None
    max_length: int = field(default=256, metadata={"help": "longer pairs are dropped"})
    tokens_per_batch: int | None = field(
        default=None, metadata={"help": "in place of per_device_train_batch_size"}
    )


parser = HfArgumentParser((Options, Seq2SeqTrainingArguments))
parser.set_defaults(use_cache=True)  # it is saved with the model, which translates slowly without
options, arguments = parser.parse_args_into_dataclasses()
if (options.validation_source is None) != (options.validation_target is None):
    parser.error("validation_source and validation_target: give both or neither")

# a model saved in bfloat16 would be trained in it, where most small steps round to nothing
model = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(options.model)
limits = LengthLimits(options.max_length)

files = options.train_source, options.train_target
pairs = encode_pairs(pairs_from_files(*files), tokenizer, limits)
train, validation = pairs.rows, None
if options.tokens_per_batch is not None:  # one item is a whole batch
    arguments.per_device_train_batch_size = 1
    arguments.train_sampling_strategy = "sequential"  # TokenBatches shuffles
    train = TokenBatches(pairs, arguments, tokens_per_batch=options.tokens_per_batch)
if options.validation_source is not None:
    files = options.validation_source, options.validation_target
    validation = encode_pairs(pairs_from_files(*files), tokenizer, limits).rows

trainer = Seq2SeqTrainer(
    model,
    arguments,
    train_dataset=train,
    eval_dataset=validation,
    data_collator=PairCollator(tokenizer.pad_token_id),
    processing_class=tokenizer,
    compute_metrics=bleu_metrics(tokenizer) if arguments.predict_with_generate else None,
)
newest = str(arguments.resume_from_checkpoint) == "True"
trainer.train(resume_from_checkpoint=newest or arguments.resume_from_checkpoint)
trainer.save_model()
if validation is not None:
    trainer.save_metrics("eval", trainer.evaluate())
if arguments.push_to_hub:
    trainer.push_to_hub()
trainer.accelerator.end_training()  # otherwise processes may crash at shutdown
