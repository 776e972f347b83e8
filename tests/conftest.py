"""Small things that many tests need: a config, a model, a tokenizer, and one seed for each test."""

import atexit
import contextlib
import gc
import itertools
import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# before any import of huggingface_hub: no test needs a network, or a cache that outlives it
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf-vanilla-tests-")
# torchao, where it is installed, reports the GPU libraries that it cannot load on a CPU
os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
os.environ["HF_DATASETS_CACHE"] = os.environ["HF_HOME"] + "/datasets"

import pytest
import shell_server
import small_run
import torch
from accelerate.state import AcceleratorState, GradientState
from filelock import FileLock

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, train_tokenizer
from hf_vanilla.text.loading import load_translator
from hf_vanilla.training import validation
from hf_vanilla.training.run import train

atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)
torch.set_num_threads(1)
# drawing takes half of the time of a small run; the fixture `drawn_curves` and commands draw
DRAW_CURVES = validation.save_curves
validation.save_curves = lambda runs, path, *_, **__: path.touch()


# the files that take longest: they start first, so that no core waits for the last one
LONG_FILES = (
    "test_docs.py",
    "test_push_roundtrip.py",
    "test_wheel.py",
    "test_as_typed.py",
    "test_run_processes.py",
    "test_text_page_browser.py",
    "test_notebook.py",
    "test_scripts.py",
    "test_benchmarks.py",
    "test_search_vanilla_random.py",
)


def pytest_collection_modifyitems(items):
    order = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish():
    # each run ends with a collection of garbage, which need not look at what is imported
    gc.freeze()


def pytest_addoption(parser):
    text = "show the processor seconds of each file and of the dearest tests"
    parser.addoption("--cpu-times", action="store_true", help=text)


def processor_seconds():
    """Of this process and of those that it started; of those that still run, where `/proc` is."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent, *fields = stat.read_text().rpartition(")")[2].split()
            if parent == str(os.getpid()) and state != "Z":
                seconds += sum(map(int, fields[9:13])) / os.sysconf("SC_CLK_TCK")
    return seconds


def pytest_configure(config):
    if config.getoption("cpu_times"):
        config.pluginmanager.register(CpuTimes())


class CpuTimes:
    """Notes in each report the processor seconds since the report before it, and lists the sums."""

    def pytest_collection_finish(self):
        self.seconds = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        before, self.seconds = self.seconds, processor_seconds()
        report.processor_seconds = self.seconds - before
        return report

    def pytest_terminal_summary(self, terminalreporter):
        files, tests = Counter(), Counter()
        for report in itertools.chain(*terminalreporter.stats.values()):
            if hasattr(report, "processor_seconds"):
                files[report.nodeid.partition("::")[0]] += report.processor_seconds
                tests[report.nodeid] += report.processor_seconds
        for name, seconds in [*files.most_common(), *tests.most_common(30)]:
            terminalreporter.write_line(f"{seconds:8.1f} s {name}")


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
def drawn_curves(monkeypatch):
    """A run draws its curves, as it does outside of tests."""
    monkeypatch.setattr(validation, "save_curves", DRAW_CURVES)


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
    """The folder of a finished run, which one worker of pytest-xdist trains; read it only."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / "trained"
    options = {"max_steps": 400, "save_steps": 50, "learning_rate": 0.02}
    # without dropout a model of this size learns all pairs
    recipe = small_run.recipe(folder, corpus_files, model={"dropout": 0.0}, **options)
    with FileLock(shared / "lock"):
        return folder if (folder / "README.md").exists() else train(recipe)


@pytest.fixture(scope="session")
def trained(trained_run):
    """Model and tokenizer of that run."""
    return load_translator(str(trained_run))


@pytest.fixture(scope="session")
def shell(tmp_path_factory):
    """Environment of a shell whose programs are forks of one process with all imports."""
    with shell_server.served(tmp_path_factory.mktemp("shell")) as environment:
        yield environment


def runner(shell):
    """Runs a program of a shell: its words, and what `subprocess.run` takes."""

    def run(*words, environment=None, **options):
        return subprocess.run(
            [str(word) for word in words],
            env={**shell, **(environment or {})},
            **{"capture_output": True, "text": True, "check": False, "timeout": 300, **options},
        )

    return run


@pytest.fixture(scope="session")
def program(shell):
    return runner(shell)


@pytest.fixture(scope="session")
def program_without_package(tmp_path_factory):
    """The same where importing this package fails."""
    with shell_server.served(tmp_path_factory.mktemp("shell"), "without") as shell:
        yield runner(shell)


@pytest.fixture(scope="session")
def processes(program):
    """Runs a program in several processes that find each other, as a launcher starts them.

    Returns:
        What each of them left, by rank.
    """

    def processes(count, *words, **options):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        with ThreadPoolExecutor(count) as pool:
            each = ({**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(count))
            each = ({name: str(value) for name, value in one.items()} for one in each)
            return [*pool.map(lambda one: program(*words, environment=one, **options), each)]

    return processes


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
