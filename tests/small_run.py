"""A corpus of digits and a recipe for a model so small that a training step takes milliseconds."""

import random
from dataclasses import fields

from safetensors.torch import load_file

from hf_vanilla.text.options import TranslationDataOptions
from hf_vanilla.training import run as training
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
TRAIN, VALIDATION = 61, 11
FILE_OPTIONS = ("train_source", "train_target", "validation_source", "validation_target")

MODEL = {
    "vocab_size": 290,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 40,
}
TRAINING = {
    "source_language": "en",
    "target_language": "de",
    "max_length": 40,
    "max_steps": 6,
    "tokens_per_step": 240,
    "tokens_per_batch": 240,
    "learning_rate": 0.01,
    "warmup_steps": 10,
    "eval_steps": 1000,
    "eval_sentences": 0,
    "save_steps": 2,
    "average_checkpoints": 3,
    "logging_steps": 2,
    "use_cpu": True,
    "trackers": [],
}


def digit_pairs() -> list[tuple[str, str]]:
    """Sentences of one to four digits, each with its translation, no two alike."""
    draw, found = random.Random(5), {}
    while len(found) < TRAIN + VALIDATION:
        digits = [draw.randrange(9) for _ in range(draw.randint(1, 4))]
        found[" ".join(ENGLISH[d] for d in digits)] = " ".join(GERMAN[d] for d in digits)
    return list(found.items())


def write_corpus(folder) -> dict[str, str]:
    """Four files; returns the recipe's options that name them."""
    pairs = digit_pairs()
    files = {}
    for name in FILE_OPTIONS:
        part = pairs[:TRAIN] if name.startswith("train") else pairs[TRAIN:]
        side = 0 if name.endswith("source") else 1
        files[name] = str(folder / f"{name}.txt")
        text = "".join(pair[side] + "\n" for pair in part)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return files


def recipe(output_dir, files, *, model=None, decoding=None, **changes) -> Recipe:
    """The small recipe with changes to options of either kind."""
    options = {**TRAINING, **files, **changes, "output_dir": str(output_dir)}
    of_task = {declared.name for declared in fields(TranslationDataOptions)}
    return Recipe(
        train=TrainRecipe(**{n: v for n, v in options.items() if n not in of_task}),
        data=TranslationDataOptions(**{n: v for n, v in options.items() if n in of_task}),
        model={**MODEL, **(model or {})},
        decoding=decoding or {},
    )


def interrupt(monkeypatch, *, after):
    """Press Ctrl-C in the step that follows so many."""
    counting = training.sum_counts

    def interrupted(run, micro_batches):
        if micro_batches[0].number // run.per_step == after:
            raise KeyboardInterrupt
        return counting(run, micro_batches)

    monkeypatch.setattr(training, "sum_counts", interrupted)


def weights(folder):
    """The tensors saved in a model folder or checkpoint, by name."""
    return load_file(folder / "model.safetensors")
