"""The training loop: any number of processes through Accelerate, one recipe (5)."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate.utils import set_seed
from torch import Tensor
from transformers import PreTrainedModel

from hf_vanilla.data.batching import PairCollator, StepSampler, TokenBatchSampler
from hf_vanilla.data.corpus import BUILT_IN_CORPUS
from hf_vanilla.data.encoding import EncodedPairs, LengthLimits
from hf_vanilla.data.streaming import StreamedBatches
from hf_vanilla.files import read_json_lines, write_files
from hf_vanilla.hub.card import CardFacts, model_card
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.saving_vanilla import code_beside_weights
from hf_vanilla.plots.curves import save_curves, smoothing_floor
from hf_vanilla.recipes.recipe import MEASURES, Recipe
from hf_vanilla.translation.evaluation import Scores, check_bleu_tokenizer

from .checkpointing import (
    Keeping,
    all_checkpoints,
    average_checkpoints,
    best_checkpoints,
    checkpoint_state,
    is_sharded,
    load_weights,
    resume,
    save_checkpoint,
    whole_model,
    whole_weights,
)
from .metrics_log import Progress, RunLog, micro_batch_work, perplexity, run_summary
from .preparation import HeldOut, check_facts, config_for, prepare_data, run_facts
from .processes import keep_freed_memory, make_accelerator
from .train_step import Stepper, Update, unusable_update
from .validation import validation_nll, validation_scores

logger = logging.getLogger(__name__)

CURVES_FILE = "curves.png"


class TrainingRun:
    """One run of one recipe: prepared when made, trained by `run`.

    Args:
        recipe: data, model, training and decoding.

    Raises:
        ValueError: the recipe does not fit the data or the folder's earlier run.
        OSError: data cannot be read.
        ImportError: a tracker that the recipe names is not installed.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.options = recipe, recipe.train
        self.output_dir = Path(recipe.train.output_dir)
        if recipe.train.eval_sentences:
            check_bleu_tokenizer(recipe.train.bleu_tokenize)
        self.accelerator = make_accelerator(recipe.train)
        set_seed(recipe.train.seed)
        self.data = prepare_data(recipe, self.accelerator)
        self.collate = PairCollator(self.data.tokenizer.pad_token_id)
        self.model = VanillaForConditionalGeneration(config_for(recipe, self.data.tokenizer))
        self.model.generation_config = recipe.generation_config(self.model.config)
        self.facts = run_facts(self.data, self.model.config)
        for folder in all_checkpoints(self.output_dir)[-1:]:
            check_facts(checkpoint_state(folder).get("facts", {}), self.facts, folder)
        self._deal_batches()
        if self.accelerator.device.type == "cpu":  # only now: what reading took is not kept
            keep_freed_memory()
        if self.accelerator.is_main_process:  # with them, the checkpoints of any moment are usable
            write_files(self.output_dir, self.model.config.save_pretrained)
            write_files(self.output_dir, self.model.generation_config.save_pretrained)
        self.stepper = Stepper(self.accelerator, self.model, recipe.train)
        self.model = self.stepper.model
        self._unread: list[Update] = []

    def _deal_batches(self) -> None:
        """Cut a step's tokens into equal micro-batches, as many for each process as it takes."""
        options, train = self.options, self.data.train
        longest = options.max_length
        if isinstance(train, EncodedPairs):
            longest = max(train.source_lengths.max(), train.target_lengths.max())
        processes = self.accelerator.num_processes
        self.passes_per_step = math.ceil(
            options.tokens_per_step / (options.tokens_per_batch * processes)
        )
        self.per_step = self.passes_per_step * processes
        budget = options.tokens_per_step // self.per_step
        if budget < longest:
            raise ValueError(
                f"tokens_per_step={options.tokens_per_step} in {self.passes_per_step} pass(es) of "
                f"{processes} process(es) leaves {budget} tokens a batch, but one sentence has "
                f"{longest}: raise it, or lower max_length"
            )
        self.batches = self._batches(budget)
        wanted = math.ceil(options.tokens_per_step / options.tokens_per_batch)
        if self.accelerator.is_main_process:
            logger.info(
                "each step: %d process(es) x %d micro-batch(es) of up to %s tokens a side%s",
                processes,
                self.passes_per_step,
                f"{budget:,}",
                "" if self.per_step == wanted else f", since {wanted} cannot be dealt evenly",
            )

    def _batches(self, tokens_per_batch: int) -> TokenBatchSampler | StreamedBatches:
        options, train = self.options, self.data.train
        if isinstance(train, EncodedPairs):
            batches = TokenBatchSampler(
                train.source_lengths,
                train.target_lengths,
                tokens_per_batch=tokens_per_batch,
                seed=options.seed,
            )
            if self.accelerator.is_main_process:
                logger.info("an epoch: %s", batches.describe())
            return batches
        stream = StreamedBatches(
            train,
            self.data.tokenizer,
            LengthLimits(options.max_length, options.max_length_ratio),
            tokens_per_batch=tokens_per_batch,
            window_pairs=options.window_pairs,
            seed=options.seed,
        )
        self.accelerator.register_for_checkpointing(stream)
        return stream

    def run(self) -> Path:
        """Train to the last step, from the newest checkpoint if there is one.

        Returns:
            The folder of the finished model.

        Raises:
            ValueError: the loss is no number any more; the last checkpoint stays.
            OSError: a checkpoint cannot be written; the last one stays.
        """
        progress = self._resume()
        self.log = RunLog(self.accelerator, self.recipe, progress)
        steps = self._steps(progress.step)
        started = time.monotonic() - progress.seconds
        try:
            while not self._is_over(progress):
                self._unread.append(self._step(*next(steps), progress))
                if self._is_due(progress.step):
                    progress.seconds = time.monotonic() - started
                    self._report(progress)
        except KeyboardInterrupt:
            self.log.close()
            if self.accelerator.is_main_process:
                logger.info("after step %d: the same command goes on from the last checkpoint",
                            progress.step)  # fmt: skip
            raise
        finally:
            self.log.close()
        return self._finish(progress)

    def _resume(self) -> Progress:
        state = resume(self.accelerator, self.output_dir) or {}
        known = {name: state[name] for name in asdict(Progress()) if name in state}
        progress = Progress(**known)
        if not self.accelerator.is_main_process or not progress.step:
            return progress
        what = "nothing to train" if self._is_over(progress) else "going on"
        logger.info("found %s: %s after step %d", self.output_dir, what, progress.step)
        began = state.get("micro_batches", self.per_step)
        if began != self.per_step:
            logger.warning(
                "the run began with %d micro-batches a step and goes on with %d: of the epoch under"
                " way, some sentences are seen twice and others not",
                began,
                self.per_step,
            )
        return progress

    def _is_over(self, progress: Progress) -> bool:
        is_stale = 0 < self.options.patience <= progress.stale
        return is_stale or progress.step >= self.options.max_steps

    def _is_due(self, step: int) -> bool:
        """Whether anything is to be read now: a GPU would stand still at every reading."""
        options = self.options
        every = (options.logging_steps, options.eval_steps, options.save_steps)
        is_cpu = self.accelerator.device.type == "cpu"
        return is_cpu or step == options.max_steps or any(step % n == 0 for n in every)

    def _steps(self, first: int) -> Iterator[tuple[list[int], list[dict[str, Tensor]]]]:
        """This process's micro-batches, step by step, with their places in the whole run."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        place = first * self.per_step + rank
        if isinstance(self.batches, StreamedBatches):
            tables = self.batches.batches(place, processes)
        else:
            told = {"per_step": self.per_step, "first_step": first}
            sampler = StepSampler(self.batches, **told, rank=rank, processes=processes)
            rows = self.data.train.rows.with_format("arrow")
            tables = (rows[numbers] for numbers in sampler)
        loader = map(self.collate, tables)
        while True:
            places = [place + i * processes for i in range(self.passes_per_step)]
            yield places, [next(loader) for _ in places]
            place += self.per_step

    def _step(
        self, places: list[int], micro_batches: list[dict[str, Tensor]], progress: Progress
    ) -> Update:
        step = progress.step + 1
        is_logged = step % self.options.logging_steps == 0
        update = self.stepper.update(step, places, micro_batches, with_nll=is_logged)
        progress.step = step
        return update

    def _read(self, progress: Progress) -> dict[str, float]:
        """Numbers of the updates since the last reading; returns those of the newest.

        Raises:
            ValueError: a loss is no number any more.
        """
        updates, self._unread = self._unread, []
        losses = self.accelerator.reduce(torch.stack([update.loss for update in updates])).tolist()
        progress.target_tokens += sum(torch.stack([u.tokens for u in updates]).tolist())
        for update, loss in zip(updates, losses, strict=True):
            if not math.isfinite(loss):
                raise self._unusable(update, f"the loss is {loss}")
            for batch in update.micro_batches:
                self.log.count(micro_batch_work(self.model.config, batch))
            self.log.bar.update()
        newest = updates[-1]
        measured = {"loss": losses[-1], "learning_rate": newest.rate}
        if newest.nll is not None:
            nll = self.accelerator.reduce(newest.nll).item()
            measured |= {"train_nll": nll, "train_perplexity": perplexity(nll)}
        self._newest = newest
        return measured

    def _unusable(self, update: Update, what: str) -> ValueError:
        return unusable_update(update, what, self.output_dir, self.accelerator.process_index)

    def _report(self, progress: Progress) -> None:
        """Log, validate and save where it is time to.

        Raises:
            ValueError: the loss is no number any more; the last checkpoint stays.
            OSError: a checkpoint cannot be written; the last one stays.
        """
        options, step = self.options, progress.step
        measured = self._read(progress)
        if step % options.logging_steps == 0:
            self.log.train_line(step, progress, **measured)
        scores: dict[str, float] = {}
        is_end = step == options.max_steps
        held_out = self.data.validation
        if held_out is not None and (step % options.eval_steps == 0 or is_end):
            with self.log.paused():
                nll, translated = self._validate(
                    self.model, held_out, progress, sentences=options.eval_sentences
                )
            scores = {"nll": nll} | ({"bleu": translated.bleu} if translated else {})
            self._compare(progress, scores.get(options.best_by))
        if step % options.save_steps == 0 or self._is_over(progress):
            with self.log.paused():
                self._save(progress, scores)

    def _compare(self, progress: Progress, value: float | None) -> None:
        better = MEASURES[self.options.best_by]
        if value is None:
            return
        if progress.best is None or better(value) < better(progress.best):
            progress.best, progress.stale = value, 0
        else:
            progress.stale += 1
        if 0 < self.options.patience <= progress.stale and self.accelerator.is_main_process:
            logger.info(
                "step %d: %s has not improved on %.4f for %d validations, so training ends",
                progress.step,
                self.options.best_by,
                progress.best,
                progress.stale,
            )

    def _save(self, progress: Progress, scores: dict[str, float]) -> None:
        options = self.options
        # a gradient may overflow where the loss did not; such weights must not replace good ones
        if not self.stepper.is_finite():
            raise self._unusable(self._newest, "a weight is no finite number any more")
        keep = Keeping(
            options.save_total_limit,
            best=options.average_checkpoints if options.average_best else 0,
            measure=options.best_by,
        )
        state = {
            **asdict(progress),
            "micro_batches": self.per_step,
            "scores": scores,
            "facts": self.facts,
        }
        weights = whole_weights(self.model) if is_sharded(self.model) else None
        save_checkpoint(self.accelerator, self.output_dir, state, keep=keep, weights=weights)

    def _validate(
        self,
        model: PreTrainedModel,
        held_out: HeldOut,
        progress: Progress,
        *,
        sentences: int,
        averaged: int = 0,
    ) -> tuple[float, Scores | None]:
        """Plain NLL per token of all validation pairs, and scores of the first `sentences`."""
        model = whole_model(model).eval()
        with self.accelerator.autocast():
            nll = validation_nll(
                self.accelerator,
                model,
                held_out.pairs,
                self.collate,
                tokens_per_batch=max(self.options.tokens_per_batch, self.options.max_length),
            )
            scores = None
            if sentences:
                scores = validation_scores(
                    self.accelerator,
                    model,
                    self.data.tokenizer,
                    held_out.text.select(range(min(sentences, len(held_out.text)))),
                    bleu_tokenize=self.options.bleu_tokenize,
                )
        entry = {"validation_nll": nll, "perplexity": perplexity(nll)}
        if scores is not None:
            entry |= {"bleu": scores.bleu, "exact_match": scores.exact_match}
        self.log.write(step=progress.step, averaged_checkpoints=averaged, **entry)
        line = "  ".join(f"{name} {value:.3f}" for name, value in entry.items())
        which = f"mean of {averaged} checkpoints" if averaged else f"step {progress.step}"
        self.log.say(f"{which}: {line}")
        return nll, scores

    def _finish(self, progress: Progress) -> Path:
        """Average the chosen checkpoints, score the mean, write the model folder."""
        options, folders = self.options, all_checkpoints(self.output_dir)
        if options.average_best:
            chosen = best_checkpoints(folders, options.average_checkpoints, measure=options.best_by)
        else:
            chosen = folders[-options.average_checkpoints :]
        model = whole_model(self.model)
        load_weights(model, average_checkpoints(chosen))
        nll, scores = None, None
        held_out = self.data.validation
        if held_out is not None:
            every = len(held_out.text) if options.eval_sentences else 0
            nll, scores = self._validate(
                model, held_out, progress, sentences=every, averaged=len(chosen)
            )
        if self.accelerator.is_main_process:
            facts = self._card_facts(progress, nll, scores)

            def write(folder: Path) -> None:
                with code_beside_weights(model, self.data.tokenizer):
                    model.save_pretrained(folder)
                    self.data.tokenizer.save_pretrained(folder)
                model_card(facts).save(folder / "README.md")
                with suppress(ImportError):  # pictures are an extra
                    entries, name = read_json_lines(self.log.path), self.output_dir.name
                    floors = {name: smoothing_floor(self.model.config)}
                    save_curves({name: entries}, folder / CURVES_FILE, floors=floors)

            write_files(self.output_dir, write)
            steps = ", ".join(folder.name.removeprefix("checkpoint-") for folder in chosen)
            logger.info("wrote the mean of checkpoints %s to %s", steps, self.output_dir)
            self._warn_of_a_bad_mean(progress, nll)
        self.accelerator.wait_for_everyone()
        return self.output_dir

    def _warn_of_a_bad_mean(self, progress: Progress, nll: float | None) -> None:
        """After few steps weights still move far, and what lies between them is no better."""
        alone = [
            entry["validation_nll"]
            for entry in read_json_lines(self.log.path)
            if entry["step"] == progress.step
            and "validation_nll" in entry
            and not entry["averaged_checkpoints"]
        ]
        if nll is not None and alone and nll > alone[-1]:
            logger.warning(
                "the mean (validation NLL %.3f) is worse than step %d alone (%.3f): train longer, "
                "or average fewer (--average_checkpoints 1)",
                *(nll, progress.step, alone[-1]),
            )

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
            command="`hf-vanilla train --recipe FILE`",
            training=(
                f"{progress.step:,} steps, {progress.target_tokens:,} target tokens, "
                f"{minutes:.1f} minutes, {processes} process{'es' * (processes > 1)} on "
                f"{self.accelerator.device.type}."
            ),
            scores=scores,
            validation_nll=nll,
            summary=run_summary(read_json_lines(self.log.path)),
        )


def train(recipe: Recipe) -> Path:
    """Train by a recipe, or go on with it; returns the folder of the finished model.

    Raises:
        ValueError: the recipe, the data or the folder is not what it should be.
        OSError: data cannot be read, or a checkpoint not written.
        ImportError: a tracker that the recipe names is not installed.
    """
    run = TrainingRun(recipe)
    folder = run.run()
    run.accelerator.end_training()  # processes that part without a word may crash at their end
    return folder
