"""Translation as a task of the training engine.

Shapes: B batch, S source, T target, V vocabulary.
"""

import copy
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from huggingface_hub import ModelCard
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.cpus import keep_compiled_products
from hf_vanilla.data.batching import (
    EMPTY_ROW,
    PairCollator,
    TokenBatchSampler,
    bucket_widths,
    filled_up,
)
from hf_vanilla.data.bleu import check_bleu_tokenizer, score_translations
from hf_vanilla.data.corpus import BUILT_IN_CORPUS
from hf_vanilla.hub.card import languages_of
from hf_vanilla.loading import OF_TRAINING
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.options import progress_bar
from hf_vanilla.training.processes import MainProcessLogger, chosen_precision, validation_bar
from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import Batch, Task, Validation, Work

from .card import translation_card
from .data import TextData, fingerprint, load_initial_model, prepare_text
from .decoding import Sentence, SentenceDecoder, generated_texts
from .encoding import EncodedPairs, tokenizer_fingerprint
from .mixture import SEED_OF_CORPUS, MixtureOrder, SourceNoise
from .options import TranslationDataOptions, changed_decoding
from .regularization import DropoutOrder, SubwordDropout, rdrop_outputs, simcut_outputs

logger = MainProcessLogger(logging.getLogger(__name__), {})

# for shorter sentences, torch's memory-efficient attention is faster on a GPU than flash attention
FLASH_LENGTH = 200
SAMPLES, LONGEST_SAMPLE = 3, 200  # translations in the log of each validation, their characters


def prepare(recipe: Recipe) -> "TranslationTask":
    """Read the text of a recipe, learn or load its tokenizer, encode.

    Raises:
        ValueError: the data do not match the recipe.
        OSError: data cannot be read.
    """
    options: TranslationDataOptions = recipe.data
    if options.eval_sentences:
        check_bleu_tokenizer(options.bleu_tokenize)
    initial, its_tokenizer = load_initial_model(recipe) or (None, None)
    data = prepare_text(recipe, its_tokenizer)
    rows = data.train.rows.with_format("arrow")
    tokenizer, dropout, noise = data.tokenizer, data.dropout, None
    collate = PairCollator(tokenizer.pad_token_id)
    if data.firsts is not None and any(corpus.is_noisy for corpus in options.corpora):
        noise = SourceNoise(options.corpora, data.firsts, tokenizer, max_length=options.max_length)
    sides = (data.train.source_lengths, data.train.target_lengths)
    if torch.cuda.is_available() and max(side.max() for side in sides) < FLASH_LENGTH:
        torch.backends.cuda.enable_flash_sdp(enabled=False)
    widths: tuple[int, ...] = ()
    is_compiled = chosen_precision(recipe.train) == "bf16" and not torch.cuda.is_available()
    if options.length_buckets is not None:
        widths = bucket_widths(np.maximum(*sides), options.length_buckets)
        keep_compiled_products(os.environ, len(widths))
    elif is_compiled and dropout is None and noise is None:
        logger.info(
            "bf16 on a CPU: products are compiled for each shape of a batch; with "
            "length_buckets=24 there are few, and a small model trains up to 1.5 times as fast"
        )
    return TranslationTask(recipe, data, rows, collate, dropout, noise, initial, widths)


@dataclass(frozen=True)
class TranslationTask(Task):
    """A prepared translation run; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model, training and decoding.
        data: tokenizer, training and validation pairs.
        rows: encoded training pairs as Arrow tables.
        collate: rows to padded tensors.
        dropout: encodes the training text anew for each batch; None without BPE-dropout.
        noise: changes the sources for each batch; None without noise.
        initial: the model from which the run starts, on the CPU, in float32; None where weights
            are random.
        widths: to which batches are padded; none without `length_buckets`.
    """

    recipe: Recipe
    data: TextData
    rows: Dataset
    collate: PairCollator
    dropout: SubwordDropout | None = None
    noise: SourceNoise | None = None
    initial: PreTrainedModel | None = None
    widths: tuple[int, ...] = ()
    items: ClassVar[str] = "tokens"
    counted: ClassVar[tuple[str, ...]] = ("target_tokens",)
    shown_count: ClassVar[str] = "target_tokens"

    @property
    def has_validation(self) -> bool:
        """Whether there are validation pairs."""
        return self.data.validation is not None

    @property
    def has_few_shapes(self) -> bool:
        """Whether batches are padded to `length_buckets`."""
        return bool(self.widths)

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return math.ceil(self.options.tokens_per_step / self.options.tokens_per_batch)

    def model(self) -> PreTrainedModel:
        """A copy of the initial model or a new one, with dropout and decoding of the recipe.

        Raises:
            ValueError: SimCut needs padding that is looked up as zeros, and it is not.
        """
        if self.initial is None:
            tokenizer = self.data.tokenizer
            config = self.recipe.config(
                vocab_size=len(tokenizer),
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                decoder_start_token_id=tokenizer.pad_token_id,
            )
            model = VanillaForConditionalGeneration(config)
            model.generation_config = self.recipe.generation_config(config)
        else:
            config, own = copy.deepcopy(self.initial.config), self.recipe.model
            config.update({name: own[name] for name in OF_TRAINING & own.keys()})
            model = VanillaForConditionalGeneration(config)
            model.load_state_dict(self.initial.state_dict())
            decoding = changed_decoding(self.initial.generation_config, self.recipe.decoding)
            model.generation_config = decoding
        if self.options.simcut_alpha and model.config.zero_token_id is None:
            raise ValueError(
                f"simcut_alpha={self.options.simcut_alpha:g} cuts tokens by zero vectors, which a "
                "model with zero_pad_embedding: false does not have: use rdrop_alpha"
            )
        return model

    def facts(self) -> dict[str, str]:
        """Fingerprints of training data, validation data and tokenizer."""
        facts = {"training data": fingerprint(self.data.train)}
        if self.data.validation is not None:
            facts["validation data"] = fingerprint(self.data.validation)
        return {**facts, "tokenizer": tokenizer_fingerprint(self.data.tokenizer)}

    def order(self, per_step: int) -> TokenBatchSampler | MixtureOrder | DropoutOrder:
        """Cut the tokens of a step into `per_step` equal micro-batches.

        Raises:
            ValueError: a micro-batch would be smaller than the longest sentence.
        """
        options, train = self.options, self.data.train
        longest = max(train.source_lengths.max(), train.target_lengths.max())
        budget = options.tokens_per_step // per_step
        if budget < longest:
            raise ValueError(
                f"tokens_per_step={options.tokens_per_step} in {per_step} micro-batch(es) leaves "
                f"{budget} tokens each, but one sentence has {longest}: raise it, or lower "
                "max_length"
            )
        seed, samplers = self.recipe.train.seed, []
        if self.data.firsts is not None:
            firsts = self.data.firsts.tolist()
            for number, rows in enumerate(pairwise(firsts)):
                name = options.corpora[number].source
                if rows[0] == rows[1]:
                    raise ValueError(f"mixture: no sentence pair of {name} is left to use")
                samplers.append(self._sampler(budget, f" of {name}", number, *rows))
            run = {"per_step": per_step, "max_steps": self.recipe.train.max_steps, "seed": seed}
            return MixtureOrder(options.corpora, samplers, firsts[:-1], **run)
        sampler = self._sampler(budget)
        if len(sampler) < per_step:
            logger.warning(
                "a step has %d micro-batches and the corpus only %d: each step reads a pair more "
                "than once; lower tokens_per_step",
                *(per_step, len(sampler)),
            )
        if self.dropout is not None and self.data.train_text is not None:
            return DropoutOrder(sampler, self.data.train_text, self.dropout, seed)
        return sampler

    def _sampler(
        self, budget: int, of: str = "", number: int = 0, first: int = 0, end: int | None = None
    ) -> TokenBatchSampler:
        """Batches of the rows of a corpus, `number` of a mixture; of all rows without a mixture."""
        train = self.data.train
        sampler = TokenBatchSampler(
            train.source_lengths[first:end],
            train.target_lengths[first:end],
            tokens_per_batch=budget,
            seed=self.recipe.train.seed + number * SEED_OF_CORPUS,
            widths=self.widths,
        )
        logger.info(
            "an epoch%s: %d batches; padding %.1f%% of source and %.1f%% of target tokens",
            *(of, len(sampler), 100 * sampler.source_padding, 100 * sampler.target_padding),
        )
        return sampler

    def batch(
        self, rows: list[int] | list[dict[str, list[int]]], generator: torch.Generator
    ) -> Batch:
        """Pad the rows: `input_ids` and `attention_mask` `(B, S)`, `labels` `(B, T)`, int64."""
        if isinstance(rows[0], dict):
            return self.collate(rows)  # they were encoded with dropout to know their lengths
        if self.data.train_text is not None:
            return self._fresh_batch(rows, generator)
        if not self.widths:
            return self.collate(self.rows[rows])
        batch = self.collate(self.rows[[row for row in rows if row != EMPTY_ROW]])
        return filled_up(batch, len(rows), self.widths, self.collate.pad_token_id)

    def _fresh_batch(self, rows: list[int], generator: torch.Generator) -> Batch:
        """The rows with noise in their sources, and with other segmentations of their words."""
        assert self.data.train_text is not None
        pairs = self.data.train_text[rows]
        sources = pairs["source"]
        if self.noise is not None:
            sources = self.noise(sources, rows, generator)
        if self.dropout is not None:
            ids, labels = (self.dropout(side, generator) for side in (sources, pairs["target"]))
        else:
            options = {"verbose": False, "return_attention_mask": False}
            ids = self.data.tokenizer(sources, **options).input_ids
            labels = self.rows[rows].column("labels").to_pylist()
        columns = zip(ids, labels, strict=True)
        return self.collate([{"input_ids": row, "labels": label} for row, label in columns])

    def counts(self, batch: Batch) -> Sequence[int]:
        """Real target tokens."""
        return [int((batch["labels"] >= 0).sum())]

    def losses(
        self, model: torch.nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Nats per target token of the step: smoothed, and plain where the step is logged."""
        (tokens,) = totals
        if self.options.rdrop_alpha:
            outputs = rdrop_outputs(model, batch, tokens, alpha=self.options.rdrop_alpha)
        elif self.options.simcut_alpha:
            outputs = simcut_outputs(model, batch, tokens, alpha=self.options.simcut_alpha)
        else:
            outputs = model(**batch, num_items_in_batch=tokens)
        if not is_logged:
            return {"loss": outputs.loss}
        nll = plain_nll(outputs.logits.detach(), batch["labels"]) / tokens
        return {"loss": outputs.loss, "train_nll": nll}

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """The perplexity of the training batch, where its NLL was measured."""
        if "train_nll" not in values:
            return {}
        return {"train_perplexity": perplexity(values["train_nll"])}

    def work(self, config: VanillaConfig, batch: Batch) -> Work:
        """Target tokens, real and padded tokens of both sides, operations."""
        sources, targets = batch["attention_mask"].sum(1), (batch["labels"] >= 0).sum(1)
        target_tokens = int(targets.sum())
        passes = 2 if self.options.rdrop_alpha or self.options.simcut_alpha else 1
        return Work(
            items=target_tokens,
            real_positions=int(sources.sum()) + target_tokens,
            padded_positions=batch["attention_mask"].numel() + batch["labels"].numel(),
            flops=training_flops(config, sources, targets) * passes,
        )

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """NLL of all pairs; scores of the first `eval_sentences`, or of all for the final model."""
        pairs, text, options = self.data.validation, self.data.validation_text, self.options
        assert pairs is not None
        assert text is not None
        nll = validation_nll(
            accelerator, model, pairs, self.collate, tokens_per_batch=options.tokens_per_batch
        )
        values = {"nll": nll, "perplexity": perplexity(nll)}
        if not options.eval_sentences:
            return Validation(values)
        chosen = len(text) if is_final else min(options.eval_sentences, len(text))
        text = text.select(range(chosen))
        found = validation_translations(accelerator, model, self.data.tokenizer, text)
        scores = score_translations(found, text["target"][:], tokenize=options.bleu_tokenize)
        values |= {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}
        return Validation(values, scores, samples(text.select(range(min(SAMPLES, chosen))), found))

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        self.data.tokenizer.save_pretrained(folder)

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card with corpus, languages and scores."""
        options = self.options
        corpus = options.dataset or BUILT_IN_CORPUS
        if options.train_files:
            corpus = " and ".join(Path(file).name for file in options.train_files)
        if options.prepared is not None:
            corpus = Path(options.prepared).resolve().name
        if options.corpora:
            corpus = ", ".join(Path(part.source).name for part in options.corpora)
        given = (options.source_language, options.target_language)
        start = self.recipe.train.initial_model
        languages = tuple(code for code in given if code is not None)
        if not languages and start is not None:
            languages = languages_of(start)
        return translation_card(
            **facts,
            dataset=corpus,
            languages=languages,
            scores=None if validation is None else validation.details,
            validation_nll=None if validation is None else validation.values["nll"],
        )


def samples(pairs: Dataset, translations: Sequence[str]) -> list[dict[str, str]]:
    """Source, reference and translation of the first pairs, for the metrics log."""
    texts = zip(pairs["source"][:], pairs["target"][:], translations, strict=False)
    names = ("source", "reference", "translation")
    return [
        {name: text[:LONGEST_SAMPLE] for name, text in zip(names, row, strict=True)}
        for row in texts
    ]


def perplexity(nll: float) -> float:
    """The exponential of nats per token, limited to the range of a float."""
    return math.exp(min(nll, 700.0))


def training_flops(config: VanillaConfig, source_lengths: Tensor, target_lengths: Tensor) -> int:
    """Floating-point operations of the matrix products of one forward and backward pass.

    A product with a weight costs 2 operations per weight and token in the forward pass and 4 in the
    backward pass: 6 in all. Per layer, with h heads of d_k and d_v, the projections of an attention
    have 2 d h (d_k + d_v) weights, half of them for queries and output, half for keys and values;
    attention itself costs h (d_k + d_v) multiplications for each pair of positions, and half as
    many pairs where it is causal. Embedding, softmax, norms and recomputation by gradient
    checkpointing are not counted; neither is padding.

    Args:
        config: of the model.
        source_lengths: `(B,)` int64 real tokens.
        target_lengths: `(B,)` likewise.
    """
    source, target = int(source_lengths.sum()), int(target_lengths.sum())
    d_model, heads = config.d_model, config.encoder_attention_heads
    width = heads * sum(config.head_widths(heads))  # h (d_k + d_v)
    encoder = source * (2 * d_model * width + 2 * d_model * config.encoder_ffn_dim)
    encoder += width * int((source_lengths**2).sum())
    heads = config.decoder_attention_heads
    width = heads * sum(config.head_widths(heads))
    # self-attention, and the target's side of cross-attention; its other side reads the source
    decoder = target * (3 * d_model * width + 2 * d_model * config.decoder_ffn_dim)
    decoder += source * d_model * width
    decoder += width * int((target_lengths**2).sum() // 2 + (source_lengths * target_lengths).sum())
    output = target * d_model * config.target_vocab_size
    return 6 * (config.encoder_layers * encoder + config.decoder_layers * decoder + output)


# --- validation -----------------------------------------------------------------------------------


@torch.no_grad()
def validation_nll(
    accelerator: Accelerator,
    model: PreTrainedModel,
    pairs: EncodedPairs,
    collate: PairCollator,
    *,
    tokens_per_batch: int,
) -> float:
    """Unsmoothed negative log-likelihood in nats per target token, over all pairs and processes.

    Args:
        accelerator: the processes; each measures its share.
        model: in evaluation mode, where its loss is unsmoothed.
        pairs: encoded validation pairs.
        collate: makes batches of their rows.
        tokens_per_batch: most tokens per side, padding included.
    """
    batches = TokenBatchSampler(
        pairs.source_lengths, pairs.target_lengths, tokens_per_batch=tokens_per_batch
    ).batches(0)[accelerator.process_index :: accelerator.num_processes]
    total = torch.zeros((), device=accelerator.device)
    tables = pairs.rows.with_format("arrow")
    for rows in validation_bar(accelerator, batches):
        batch = collate(tables[rows])
        on_device = {name: ids.to(accelerator.device) for name, ids in batch.items()}
        total += model(**on_device, num_items_in_batch=1).loss
    return accelerator.reduce(total).item() / int(pairs.target_lengths.sum())


def validation_translations(
    accelerator: Accelerator,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
) -> list[str]:
    """The model's translations in the order of the pairs; each process translates its share.

    Args:
        accelerator: the processes.
        model: in evaluation mode; decodes with its generation config.
        tokenizer: of both languages.
        pairs: rows of `source` and `target`.
    """
    rows = range(accelerator.process_index, len(pairs), accelerator.num_processes)
    sentences = map(Sentence, pairs.select(rows)["source"][:], (row + 1 for row in rows))
    is_hidden = not accelerator.is_main_process
    with progress_bar(text="Validating", unit="sent", total=len(rows), is_hidden=is_hidden) as bar:
        texts = SentenceDecoder(tokenizer).results(
            sentences,
            lambda rows, _: [text for text, _ in generated_texts(model, tokenizer, rows)],
            progress=bar.update,
        )
        found = list(zip(rows, texts, strict=True))
    parts = gather_object(found)
    return [text for _, text in sorted(parts)]


@torch.no_grad()
def plain_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of the labels in nats, summed, unsmoothed.

    Args:
        logits: `(B, T, V)`; converted to float32 a few rows at a time.
        labels: `(B, T)` int64; -100 is padding.
    """
    parts = zip(logits.flatten(0, 1).split(1024), labels.flatten().split(1024), strict=True)
    sums = [cross_entropy(rows.float(), ids, reduction="sum") for rows, ids in parts]
    return torch.stack(sums).sum()
