"""For transformers' Trainer: batches of a token budget, and scores of translations."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset
from transformers import EvalPrediction, PreTrainedTokenizerBase, TrainingArguments

from hf_vanilla.data.batching import TokenBatchSampler
from hf_vanilla.data.bleu import score_translations

from .encoding import EncodedPairs


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
        if isinstance(prediction.predictions, list):
            raise ValueError("eval_do_concat_batches=False: bleu_metrics needs True, the default")
        if isinstance(prediction.predictions, tuple):
            raise ValueError(
                "the predictions are logits, not translations: set predict_with_generate=True in "
                "Seq2SeqTrainingArguments, or leave out compute_metrics=bleu_metrics(...)"
            )
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
