"""A new task needs one row: a toy task that counts words, added to the table for these tests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from huggingface_hub import ModelCard
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from hf_vanilla import families
from hf_vanilla.app.page import Served
from hf_vanilla.app.worker import Worker
from hf_vanilla.data.batching import RowOrder
from hf_vanilla.families import TASKS, Measure
from hf_vanilla.loading import load_folder
from hf_vanilla.options import option
from hf_vanilla.plots.figures import plot, read_plot
from hf_vanilla.serve import Settings, served_by
from hf_vanilla.training.checkpointing import AverageOptions, average_run
from hf_vanilla.training.options import TrainRecipe
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.training.task import Validation, Work
from hf_vanilla.training.validation import evaluate, read_evaluation

TEXTS = ("a b", "a b c", "a", "a b c d e")
MEASURES = {
    "error": Measure("error", "words", better="lower"),
    "loss": Measure("training loss", "words"),
}


@dataclass(frozen=True, kw_only=True)
class WordCountOptions:
    """Options of the toy task."""

    repeats: int = option(1, "times that each text is used", at_least=1)

    def check_with(self, train: TrainRecipe) -> None:
        pass


class WordCountConfig(PreTrainedConfig):
    model_type = "word_counts"
    letters: int = 128


class WordCountModel(PreTrainedModel):
    config_class = WordCountConfig

    def __init__(self, config):
        super().__init__(config)
        self.weight_of_letter = nn.Embedding(config.letters, 1)
        self.post_init()

    def forward(self, letters):
        """`(B, L)` letters, 0 is padding, to `(B,)` numbers of words."""
        return (self.weight_of_letter(letters)[..., 0] * letters.ne(0)).sum(1)


def letters_of(texts: Sequence[str]) -> Tensor:
    longest = max(map(len, texts))
    return torch.tensor([[*map(ord, text), *[0] * (longest - len(text))] for text in texts])


@dataclass(frozen=True)
class WordCountTask:
    recipe: Recipe
    items: ClassVar[str] = "texts"
    counted: ClassVar[tuple[str, ...]] = ("texts",)
    shown_count: ClassVar[str] = ""
    has_validation: ClassVar[bool] = True
    processor: ClassVar[Any] = None
    micro_batches: ClassVar[int] = 1

    def model(self):
        return WordCountModel(self.recipe.config())

    def facts(self):
        return {"texts": str(len(TEXTS))}

    def order(self, per_step):
        return RowOrder(len(TEXTS), 2, self.recipe.train.seed)

    def batch(self, rows, generator):
        texts = [TEXTS[row] for row in rows]
        words = torch.tensor([float(len(text.split())) for text in texts])
        return {"letters": letters_of(texts), "words": words}

    def counts(self, batch):
        return [len(batch["words"])]

    def losses(self, model, batch, totals, *, is_logged):
        return {"loss": (model(batch["letters"]) - batch["words"]).abs().sum() / totals[0]}

    def derived(self, values):
        return {}

    def work(self, config, batch):
        return Work(items=len(batch["words"]), real_positions=1, padded_positions=1)

    def validate(self, model, accelerator, *, is_final):
        return Validation({"error": error_of(model)})

    def save(self, folder):
        pass

    def card(self, facts, validation):
        return ModelCard(f"---\n---\n# {facts['title']}: error {validation.values['error']:.3f}\n")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Score a model that counts words."""

    model: str = option(text="model folder")
    text: str = option(None, "count the words of this text")


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Draw word counts."""

    output: str = option("words.svg", "file")


def error_of(model) -> float:
    words = torch.tensor([float(len(text.split())) for text in TEXTS])
    return float((model(letters_of(TEXTS)) - words).abs().mean())


def evaluate_words(options: EvaluateOptions) -> str:
    model, _ = load_folder(Path(options.model))
    with torch.no_grad():
        return f"error {error_of(model):.3f}"


def plot_words(options: PlotOptions) -> Path:
    Path(options.output).write_text("<svg/>")
    return Path(options.output)


def open_service(models: Sequence[str], settings: Settings, worker: Worker) -> Served:
    return Served({"index.html": f"page of {models[0]}"}, {}, {})


@pytest.fixture
def word_counts(monkeypatch):
    AutoConfig.register("word_counts", WordCountConfig, exist_ok=True)
    AutoModel.register(WordCountConfig, WordCountModel, exist_ok=True)
    here = {
        "data": "WordCountOptions",
        "measures": "MEASURES",
        "prepare": "WordCountTask",
        "config": "WordCountConfig",
        "model": "WordCountModel",
        "evaluate": "evaluate_words:EvaluateOptions",
        "service": "open_service",
    }
    row = replace(
        TASKS["image_classification"],
        model_types=("word_counts",),
        auto_class="transformers:AutoModel",
        processor="",
        set_by_data=(),
        figures={"words": f"{__name__}:plot_words:PlotOptions"},
        **{part: f"{__name__}:{name}" for part, name in here.items()},
    )
    monkeypatch.setitem(families.TASKS, "word_counts", row)


def test_one_row_adds_a_task_to_all_commands(word_counts, tmp_path):
    folder = tmp_path / "run"
    given = {"task": "word_counts", "output_dir": folder, "repeats": 2, "max_steps": 40}
    given |= {"learning_rate": 0.05, "warmup_steps": 4, "schedule": "one_cycle", "save_steps": 20}
    given |= {"logging_steps": 20, "eval_steps": 20, "model.letters": 125}
    train(read_recipe([f"--{name}={value}" for name, value in given.items()]))
    model, processor = load_folder(folder)
    assert isinstance(model, WordCountModel)
    assert (processor, model.config.letters) == (None, 125)
    with torch.no_grad():
        error = error_of(model)
    assert f"error {error:.3f}" in (folder / "README.md").read_text()
    assert evaluate(read_evaluation([f"--model={folder}"])) == f"error {error:.3f}"
    average_run(AverageOptions(run=str(folder), last=2, output=str(tmp_path / "mean")))
    assert evaluate(read_evaluation([f"--model={tmp_path / 'mean'}"])).startswith("error ")
    assert plot(read_plot(["words", f"--output={tmp_path / 'words.svg'}"])).is_file()
    served = served_by([str(folder)], Settings(), Worker())
    assert served.files == {"index.html": f"page of {folder}"}
