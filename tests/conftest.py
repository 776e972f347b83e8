"""Small things that many tests need: a config, a model, a tokenizer, and one seed for each test."""

import atexit
import os
import shutil
import tempfile

# before any import of huggingface_hub: no test needs a network, or a cache that outlives it
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf-vanilla-tests-")
# torchao, where it is installed, reports the GPU libraries that it cannot load on a CPU
os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
os.environ["HF_DATASETS_CACHE"] = os.environ["HF_HOME"] + "/datasets"

import pytest
import small_run
import torch
from accelerate.state import AcceleratorState, GradientState

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, train_tokenizer
from hf_vanilla.text.loading import load_translator
from hf_vanilla.training.run import train

atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)
torch.set_num_threads(1)

SENTENCES = (
    "ein Haus am See",
    "a house by the lake",
    "das kleine Haus steht am großen See",
    "the little house stands by the big lake",
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(17)


@pytest.fixture
def tiny_config() -> VanillaConfig:
    """Every size differs from every other, so that swapped axes or sides cannot pass."""
    return VanillaConfig(
        vocab_size=43,
        d_model=12,
        encoder_layers=2,
        encoder_attention_heads=3,
        encoder_ffn_dim=29,
        decoder_layers=5,
        decoder_attention_heads=2,
        decoder_ffn_dim=31,
        max_position_embeddings=61,
    )


@pytest.fixture
def tiny_model(tiny_config) -> VanillaForConditionalGeneration:
    return VanillaForConditionalGeneration(tiny_config).eval()


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return train_tokenizer(SENTENCES, vocab_size=283, model_max_length=61)


@pytest.fixture
def fresh_accelerator():
    """accelerate keeps one state per process; a test with another environment needs a new one."""
    for when in ("before", "after"):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if when == "before":
            yield


@pytest.fixture(scope="session")
def corpus_files(tmp_path_factory) -> dict[str, str]:
    """A parallel corpus that a tiny model learns by heart: digits in English and in German."""
    return small_run.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def trained_run(corpus_files, tmp_path_factory):
    """The folder of a finished run; read it only."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    options = {"max_steps": 400, "save_steps": 50, "learning_rate": 0.02}
    # without dropout a model of this size learns all pairs
    return train(small_run.recipe(folder, corpus_files, model={"dropout": 0.0}, **options))


@pytest.fixture(scope="session")
def trained(trained_run):
    """Model and tokenizer of that run."""
    return load_translator(str(trained_run))


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, as matplotlib has them."""
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig

    def record(figure, *args, **kwargs):
        saved.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", record)
    return saved
