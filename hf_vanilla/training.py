"""The training loop: any number of processes through Accelerate, one recipe (5)."""

import ctypes
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import DatasetDict
from torch import Tensor
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .batching import (
    EncodedPairs,
    LengthLimits,
    PairCollator,
    StepSampler,
    TokenBatchSampler,
    encode_pairs,
)
from .checkpointing import (
    all_checkpoints,
    average_checkpoints,
    load_weights,
    resume,
    save_checkpoint,
)
from .configuration_vanilla import VanillaConfig
from .corpus import BUILT_IN_CORPUS
from .evaluation import Scores, check_bleu_tokenizer
from .hub import CardFacts, model_card
from .modeling_vanilla import VanillaForConditionalGeneration
from .optimization import inverse_sqrt_schedule, paper_adam, peak_learning_rate
from .recipe import Recipe, TrainRecipe, load_corpus, read_recipe
from .streaming import StreamedBatches
from .tokenizer_training import train_tokenizer
from .validation import validation_nll, validation_scores

logger = logging.getLogger(__name__)

RECIPE_FILE, LOG_FILE = "recipe.yaml", "log.jsonl"
VOCABULARY_PAIRS = 1_000_000  # of a stream's beginning, from which a vocabulary is learned
# a run may go on with other values of these; any other change makes it another run
FREE_TO_CHANGE = {"max_steps", "eval_steps", "eval_sentences", "save_steps", "save_total_limit"}
FREE_TO_CHANGE |= {"logging_steps", "average_checkpoints", "use_cpu", "model_license"}
FREE_TO_CHANGE |= {"preprocessing_workers"}


def keep_freed_memory() -> None:
    """Let the C library reuse big arrays instead of handing each back to the kernel.

    Training on a CPU frees and allocates the same large arrays at every step; by default each comes
    back as thousands of page faults, which can take longer than the arithmetic. Linux with glibc
    only; elsewhere nothing happens.
    """
    # <malloc.h>: M_MMAP_MAX = -4, M_TRIM_THRESHOLD = -1
    with suppress(OSError, AttributeError):
        allocator = ctypes.CDLL("libc.so.6")
        allocator.mallopt(-4, 0)
        allocator.mallopt(-1, 2**31 - 1)


def make_accelerator(recipe: TrainRecipe) -> Accelerator:
    """The processes of this run.

    Raises:
        ValueError: several processes were launched, but they do not know each other.
    """
    accelerator = Accelerator(cpu=recipe.use_cpu, mixed_precision=recipe.mixed_precision)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but each would train alone and overwrite the "
            "others' files: on machines without GPU add --use_cpu True"
        )
    return accelerator


@dataclass
class Progress:
    """Where a run stands; saved with each checkpoint.

    Attributes:
        step: optimizer steps done.
        target_tokens: real target tokens seen.
        seconds: time of training, validation and saving included.
    """

    step: int = 0
    target_tokens: int = 0
    seconds: float = 0.0


class TrainingRun:
    """One run of one recipe: prepared when made, trained by `run`.

    Args:
        recipe: data, model, training and decoding.

    Raises:
        ValueError: the recipe does not fit the data or the folder's earlier run.
        OSError: data cannot be read.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.options = recipe, recipe.train
        self.output_dir = Path(recipe.train.output_dir)
        if recipe.train.eval_sentences:
            check_bleu_tokenizer(recipe.train.bleu_tokenize)
        self.accelerator = make_accelerator(recipe.train)
        set_seed(recipe.train.seed)
        if self.accelerator.is_main_process:
            logger.info("reading the corpus, learning the vocabulary")
        with self.accelerator.main_process_first():
            _check_folder(recipe, self.output_dir)
            corpus = load_corpus(recipe.train)
            if self.accelerator.is_main_process:
                self.output_dir.mkdir(parents=True, exist_ok=True)
                written = self.output_dir / RECIPE_FILE
                written.write_text(recipe.to_yaml(), encoding="utf-8")
            self.tokenizer = self._make_tokenizer(corpus)
            self.train_pairs = corpus["train"]
            if not recipe.train.streaming:
                self.train_pairs = self._encode(corpus, "train")
            self.validation: Any = corpus.get("validation")
            if self.validation is not None:
                self.validation_pairs = self._encode(corpus, "validation")
            del corpus  # a mapped text takes memory where it has been read
        self.model = VanillaForConditionalGeneration(self._config())
        self.model.generation_config = recipe.generation_config(self.model.config)
        if self.accelerator.is_main_process:  # with them, the checkpoints of any moment are usable
            self.model.config.save_pretrained(self.output_dir)
            self.model.generation_config.save_pretrained(self.output_dir)
        self._prepare()
        if self.accelerator.device.type == "cpu":  # only now: what reading took is not kept
            keep_freed_memory()

    def _make_tokenizer(self, corpus: DatasetDict) -> PreTrainedTokenizerBase:
        if self.options.tokenizer is not None:
            return AutoTokenizer.from_pretrained(self.options.tokenizer)
        if (self.output_dir / "tokenizer.json").is_file():
            return AutoTokenizer.from_pretrained(self.output_dir)
        config, streaming = self.recipe.config(), self.options.streaming
        tokenizer = train_tokenizer(
            (
                text
                for row in islice(corpus["train"], VOCABULARY_PAIRS if streaming else None)
                for text in (row["source"], row["target"])
            ),
            vocab_size=config.vocab_size,
            model_max_length=config.max_position_embeddings,
        )
        if self.accelerator.is_main_process:
            tokenizer.save_pretrained(self.output_dir)
        return tokenizer

    def _encode(self, corpus: DatasetDict, split: str) -> EncodedPairs:
        # what is held out stays whole: a ratio is for cleaning what is learned from
        ratio = self.options.max_length_ratio if split == "train" else None
        limits = LengthLimits(self.options.max_length, ratio)
        pairs = encode_pairs(
            corpus[split], self.tokenizer, limits, workers=self.options.preprocessing_workers
        )
        if self.accelerator.is_main_process:
            told = pairs.left_out.describe(limits)
            logger.info("%s: %d pairs; left out: %s", split, len(pairs.rows), told)
        return pairs

    def _config(self) -> VanillaConfig:
        """The recipe's config with what only the tokenizer knows."""
        return self.recipe.config(
            vocab_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            decoder_start_token_id=self.tokenizer.pad_token_id,
        )

    def _prepare(self) -> None:
        options, d_model = self.options, self.model.config.d_model
        rate = options.learning_rate or peak_learning_rate(d_model, options.warmup_steps)
        optimizer = paper_adam(
            self.model.parameters(),
            learning_rate=rate,
            betas=(options.adam_beta1, options.adam_beta2),
            epsilon=options.adam_epsilon,
        )
        # not prepared: a prepared schedule would take one step per process
        self.schedule = inverse_sqrt_schedule(optimizer, warmup_steps=options.warmup_steps)
        self.accelerator.register_for_checkpointing(self.schedule)
        self.parallel, self.optimizer = self.accelerator.prepare(self.model, optimizer)
        processes = self.accelerator.num_processes
        self.passes_per_step = math.ceil(
            options.tokens_per_step / (options.tokens_per_batch * processes)
        )
        budget = options.tokens_per_step // (self.passes_per_step * processes)
        longest = options.max_length
        if not options.streaming:
            lengths = self.train_pairs.source_lengths, self.train_pairs.target_lengths
            longest = max(side.max() for side in lengths)
        if budget < longest:
            raise ValueError(
                f"tokens_per_step={options.tokens_per_step} in {self.passes_per_step} pass(es) of "
                f"{processes} process(es) leaves {budget} tokens a batch, but one sentence has "
                f"{longest}: raise it, or lower max_length"
            )
        self.batches = self._make_batches(budget)
        self.collate = PairCollator(self.tokenizer.pad_token_id)

    def _make_batches(self, tokens_per_batch: int) -> TokenBatchSampler | StreamedBatches:
        options = self.options
        if options.streaming:
            stream = StreamedBatches(
                self.train_pairs,
                self.tokenizer,
                LengthLimits(options.max_length, options.max_length_ratio),
                tokens_per_batch=tokens_per_batch,
                window_pairs=options.window_pairs,
                seed=options.seed,
            )
            self.accelerator.register_for_checkpointing(stream)
            return stream
        batches = TokenBatchSampler(
            self.train_pairs.source_lengths,
            self.train_pairs.target_lengths,
            tokens_per_batch=tokens_per_batch,
            seed=options.seed,
        )
        if self.accelerator.is_main_process:
            logger.info("an epoch: %s", batches.describe())
        return batches

    def run(self) -> Path:
        """Train to the last step, from the newest checkpoint if there is one.

        Returns:
            The folder of the finished model.
        """
        state = resume(self.accelerator, self.output_dir)
        progress = Progress(**state) if state else Progress()
        is_main = self.accelerator.is_main_process
        last = self.options.max_steps
        if progress.step and is_main:
            what = "going on after" if progress.step < last else "nothing to train after"
            logger.info("found %s: %s step %d", self.output_dir, what, progress.step)
        bar = tqdm(total=last, initial=progress.step, disable=not is_main, unit="step")
        steps = self._steps(progress.step)
        started = time.monotonic() - progress.seconds
        try:
            with bar:
                while progress.step < last:
                    loss = self._step(*next(steps), progress)
                    progress.seconds = time.monotonic() - started
                    bar.update()
                    self._report(progress, loss, bar)
        except KeyboardInterrupt:
            if is_main:
                logger.info("after step %d: the same command goes on from the last checkpoint",
                            progress.step)  # fmt: skip
            raise
        return self._finish(progress)

    def _steps(self, first: int) -> Iterator[tuple[list[int], list[dict[str, Tensor]]]]:
        """This process's micro-batches, step by step, with their places in the whole run."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        per_step = self.passes_per_step * processes
        place = first * per_step + rank
        if isinstance(self.batches, StreamedBatches):
            tables = self.batches.batches(place, processes)
        else:
            sampler = StepSampler(
                self.batches, per_step=per_step, first_step=first, rank=rank, processes=processes
            )
            rows = self.train_pairs.rows.with_format("arrow")
            tables = (rows[numbers] for numbers in sampler)
        loader = map(self.collate, tables)
        while True:
            places = [place + i * processes for i in range(self.passes_per_step)]
            yield places, [next(loader) for _ in places]
            place += per_step

    def _step(
        self, places: list[int], micro_batches: list[dict[str, Tensor]], progress: Progress
    ) -> float:
        """One update; returns the loss in nats per target token, over all processes."""
        accelerator = self.accelerator
        self.parallel.train()
        count = sum(int((batch["labels"] >= 0).sum()) for batch in micro_batches)
        tokens = accelerator.reduce(torch.tensor(count, device=accelerator.device))
        total = torch.zeros((), device=accelerator.device)
        for place, batch in zip(places, micro_batches, strict=True):
            # dropout depends on the place in the run alone, so that a resumed run repeats itself
            torch.manual_seed(self.options.seed * 1_000_003 + place)
            is_last = place == places[-1]
            with nullcontext() if is_last else accelerator.no_sync(self.parallel):
                on_device = {name: ids.to(accelerator.device) for name, ids in batch.items()}
                loss = self.parallel(**on_device, num_items_in_batch=tokens).loss
                # data-parallel training averages gradients; this loss is already per token of all
                accelerator.backward(loss * accelerator.num_processes)
            total += loss.detach()
        if self.options.max_grad_norm:
            accelerator.clip_grad_norm_(self.parallel.parameters(), self.options.max_grad_norm)
        self.rate = self.schedule.get_last_lr()[0]  # of this update; the schedule moves on
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        progress.target_tokens += int(tokens)
        return accelerator.reduce(total).item()

    def _report(self, progress: Progress, loss: float, bar: tqdm) -> None:
        """Log, validate and save where it is time to.

        Raises:
            ValueError: the loss is no number any more; the last checkpoint stays.
        """
        options, step = self.options, progress.step
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {step}, learning rate "
                f"{self.rate:.3g}: lower learning_rate, lengthen "
                "warmup_steps or set max_grad_norm; the last checkpoint is untouched"
            )
        if step % options.logging_steps == 0:
            rate = progress.target_tokens / progress.seconds
            bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{rate:,.0f}")
            self._log(
                step=step,
                loss=loss,
                learning_rate=self.rate,
                target_tokens=progress.target_tokens,
                seconds=round(progress.seconds, 1),
            )
        is_end = step == options.max_steps
        if self.validation is not None and (step % options.eval_steps == 0 or is_end):
            self._validate(progress, options.eval_sentences)
        if step % options.save_steps == 0 or is_end:
            save_checkpoint(
                self.accelerator, self.output_dir, asdict(progress), keep=options.save_total_limit
            )

    def _validate(
        self, progress: Progress, sentences: int, *, averaged: int = 0
    ) -> tuple[float, Scores | None]:
        """Plain NLL per token of all validation pairs, and scores of the first `sentences`."""
        self.model.eval()
        nll = validation_nll(
            self.accelerator,
            self.model,
            self.validation_pairs,
            self.collate,
            tokens_per_batch=max(self.options.tokens_per_batch, self.options.max_length),
        )
        scores = None
        entry = {"validation_nll": nll, "perplexity": math.exp(min(nll, 700.0))}
        if sentences:
            scores = validation_scores(
                self.accelerator,
                self.model,
                self.tokenizer,
                self.validation.select(range(min(sentences, len(self.validation)))),
                bleu_tokenize=self.options.bleu_tokenize,
            )
            entry |= {"bleu": scores.bleu, "exact_match": scores.exact_match}
        self._log(step=progress.step, averaged_checkpoints=averaged, **entry)
        if self.accelerator.is_main_process:
            line = "  ".join(f"{name} {value:.3f}" for name, value in entry.items())
            which = f"mean of {averaged} checkpoints" if averaged else f"step {progress.step}"
            tqdm.write(f"{which}: {line}", file=sys.stderr)
        return nll, scores

    def _log(self, **entry: Any) -> None:
        if self.accelerator.is_main_process:
            with (self.output_dir / LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def _finish(self, progress: Progress) -> Path:
        """Average the last checkpoints, score the mean, write the model folder."""
        folders = all_checkpoints(self.output_dir)[-self.options.average_checkpoints :]
        load_weights(self.model, average_checkpoints(folders))
        nll, scores = None, None
        if self.validation is not None:
            every = len(self.validation) if self.options.eval_sentences else 0
            nll, scores = self._validate(progress, every, averaged=len(folders))
        if self.accelerator.is_main_process:
            self.model.save_pretrained(self.output_dir)
            self.tokenizer.save_pretrained(self.output_dir)
            card = model_card(self._card_facts(progress, nll, scores))
            card.save(self.output_dir / "README.md")
            logger.info("wrote the mean of %d checkpoints to %s", len(folders), self.output_dir)
        self.accelerator.wait_for_everyone()
        return self.output_dir

    def _card_facts(
        self, progress: Progress, nll: float | None, scores: Scores | None
    ) -> CardFacts:
        options = self.options
        source, target = options.source_language, options.target_language
        files = options.train_files
        corpus = options.dataset or BUILT_IN_CORPUS
        if files is not None:
            corpus = " and ".join(Path(file).name for file in files)
        minutes, processes = progress.seconds / 60, self.accelerator.num_processes
        return CardFacts(
            model_name=self.output_dir.resolve().name,
            corpus=corpus,
            languages=() if source is None or target is None else (source, target),
            license=options.model_license,
            parameters=self.model.num_parameters(),
            recipe=self.recipe.to_yaml(),
            command="`scripts/train.py --recipe FILE`",
            training=(
                f"{progress.step:,} steps, {progress.target_tokens:,} target tokens, "
                f"{minutes:.1f} minutes, {processes} process{'es' * (processes > 1)} on "
                f"{self.accelerator.device.type}."
            ),
            scores=scores,
            validation_nll=nll,
        )


def _check_folder(recipe: Recipe, output_dir: Path) -> None:
    """Refuse to mix two runs in one folder."""
    written = output_dir / RECIPE_FILE
    if written.is_file():
        before = read_recipe(["--recipe", str(written)])
        earlier = {**asdict(before.train), "model": before.model}
        now = {**asdict(recipe.train), "model": recipe.model}
        changed = {n for n in now if earlier[n] != now[n]} - FREE_TO_CHANGE - {"output_dir"}
        if changed:
            told = ", ".join(f"{n} ({earlier[n]!r}, now {now[n]!r})" for n in sorted(changed))
            raise ValueError(
                f"{output_dir} holds a run of another recipe, which differs in {told}: choose "
                "another output_dir, or delete the folder to start anew"
            )
    elif output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(
            f"{output_dir} is not empty and holds no run to go on with: choose another output_dir"
        )


def train(recipe: Recipe) -> Path:
    """Train by a recipe, or go on with it; returns the folder of the finished model.

    Raises:
        ValueError: the recipe, the data or the folder is not what it should be.
        OSError: data cannot be read.
    """
    run = TrainingRun(recipe)
    folder = run.run()
    run.accelerator.end_training()  # processes that part without a word may crash at their end
    return folder
