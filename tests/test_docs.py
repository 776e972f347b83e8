"""The code blocks of README and docs run in order, as one session in one folder for each page.

Sybil finds the blocks. Python blocks of a page share their names. Commands run in bash, by the
programs of `shell_server.py`.
"""

import importlib.util
import json
import random
import re
import shutil
import subprocess
import tarfile
import tomllib
from dataclasses import fields
from pathlib import Path

import fairseq_by_hand
import hub_server
import image_files
import image_models
import opus
import pytest
import sacrebleu
import torch
import yaml
from datasets import Dataset
from sybil.document import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from torch import nn
from transformers import Seq2SeqTrainingArguments

import hf_vanilla
from hf_vanilla.images.batches import image_processor
from hf_vanilla.training.recipe import read_recipe

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in PAGES}
PAGES_WITH_CODE = [name for name, text in TEXTS.items() if "```" in text]
CLONE = ("Makefile", "constraints.txt", "pyproject.toml", "scripts", "docs/figures")
CLONE += ("hf_vanilla/recipes",)
# what a reader replaces, and numbers that take too long
REPLACED = {"USER/NAME": "ada/name", "max_steps=1000": "max_steps=2"}
OPTIONAL_LIBRARIES = ("onnx",)  # without it, a block that needs it is only compiled


def sentence_pairs(count, seed):
    draw = random.Random(seed)
    words = (("two", "zwei"), ("men", "Männer"), ("at", "an"), ("a", "einem"), ("stove", "Herd"))
    chosen = [[draw.choice(words) for _ in range(draw.randint(2, 7))] for _ in range(count)]
    return [tuple(" ".join(side) for side in zip(*row, strict=True)) for row in chosen]


def write_text_files(folder):
    for seed, (name, count) in enumerate({"train": 48, "val": 12, "test": 12}.items()):
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] + "\n" for pair in sentence_pairs(count, seed)]
            if language == "en":  # a character that ends no line, though str.splitlines() says so
                lines[1] = lines[1].replace(" ", "\u2028", 1)
            (folder / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
    recipe = {"output_dir": "runs/recipe", "train_source": "train.en", "train_target": "train.de"}
    recipe |= {"validation_source": "val.en", "validation_target": "val.de"}
    (folder / "RECIPE.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def write_wmt(folder):
    """`wmt/wmt14` as the Hub has it, in a folder of that name, which `datasets` finds first."""
    (folder / "de-en").mkdir(parents=True)
    files = []
    for seed, split in enumerate(("train", "validation", "test")):
        rows = [{"translation": {"en": a, "de": b}} for a, b in sentence_pairs(24, seed)]
        files.append({"split": split, "path": f"de-en/{split}.parquet"})
        Dataset.from_list(rows).to_parquet(folder / files[-1]["path"])
    card = yaml.safe_dump({"configs": [{"config_name": "de-en", "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{card}---\n", encoding="utf-8")


def write_fairseq_archive(folder):
    """fairseq's archive of WMT 2016 with a tiny model of random weights."""
    sides = (fairseq_by_hand.ENGLISH, "en"), (fairseq_by_hand.GERMAN, "de")
    split = [fairseq_by_hand.moses(line, lang) for lines, lang in sides for line in lines]
    codes = fairseq_by_hand.learned_codes(split)
    words = fairseq_by_hand.dictionary([fairseq_by_hand.cut_with(codes)(line) for line in split])
    settings = fairseq_by_hand.settings(share_all_embeddings=True)
    weights = fairseq_by_hand.weights(settings, len(words), len(words))
    listed = fairseq_by_hand.dictionary_file(words)
    files = {"dict.en.txt": listed, "dict.de.txt": listed, "bpecodes": codes}
    inside = fairseq_by_hand.write_archive(folder / "unpacked", settings, weights, files)
    name = "wmt16.en-de.joined-dict.transformer"
    with tarfile.open(folder / f"{name}.tar.bz2", "w:bz2") as archive:
        archive.add(inside, arcname=name)


def write_tutorial_model(path):
    """The state dict of PyTorch's translation tutorial, small, with its 8 heads."""
    parts = {
        "transformer": nn.Transformer(16, 8, 1, 1, 29),
        "generator": nn.Linear(16, 37),
        "src_tok_emb.embedding": nn.Embedding(43, 16),
        "tgt_tok_emb.embedding": nn.Embedding(37, 16),
    }
    state = {p: m.state_dict() for p, m in parts.items()}
    torch.save({f"{p}.{name}": w for p, found in state.items() for name, w in found.items()}, path)


def write_sacrebleu_set(folder):
    """Where sacreBLEU keeps a downloaded test set."""
    folder.mkdir(parents=True)
    sides = dict(zip(("src", "ref"), zip(*sentence_pairs(6, seed=9), strict=True), strict=True))
    for name in sacrebleu.DATASETS["wmt14/full"].fieldnames("en-de"):
        text = "".join(line + "\n" for line in sides.get(name, ["none"] * 6))
        (folder / f"wmt14_full.en-de.{name}").write_text(text, encoding="utf-8")


def write_images(folder):
    """Photographs of two classes, a model of them, and one of digits."""
    for part in ("photos/train", "photos/validation", "album"):
        image_files.colour_folder(folder / part, count=3)
    image_files.coloured(folder / "new.jpg", (20, 20, 230))
    sizes = {"image_size": 8, "patch_size": 4}
    for name, labels in (("vit", "ab"), ("runs/demo_images", "0123456789")):
        image_models.vit(**sizes, id2label=dict(enumerate(labels))).save_pretrained(folder / name)
        image_processor((8, 8), [0.3] * 3, [0.4] * 3).save_pretrained(folder / name)


def add_opus_model(hub, folder):
    opus.write_folder(folder)
    repository = hub_server.Repository(is_private=False)
    hub.repositories["Helsinki-NLP/opus-mt-en-de"] = repository
    files = {
        path.name: hub_server.File(path.read_bytes(), path.name.endswith(hub_server.LARGE_FILES))
        for path in folder.iterdir()
    }
    repository.commit("main", files)


@pytest.fixture(scope="module")
def environment(shell, tmp_path_factory):
    """Of the shell that runs a page's commands, with a Hub of its own and small archives."""
    folder = tmp_path_factory.mktemp("archives")
    write_fairseq_archive(folder)
    write_sacrebleu_set(Path(shell["SACREBLEU"]) / "wmt14" / "full")
    with hub_server.HubServer() as hub:
        add_opus_model(hub, folder / "opus")
        told = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub_server.TOKEN, "SMALLER": "1"}
        yield {**shell, **told, "SMALL_ARCHIVES": str(folder)}


@pytest.fixture
def clone(environment, trained_run, tmp_path, monkeypatch):
    """What a reader has: a clone with its environment, text files, two trained models."""
    for name in CLONE:  # a copy: what a page writes must not come into the repository
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    programs = Path(environment["PATH"].split(":")[0])
    shutil.copytree(programs, tmp_path / ".venv" / "bin")
    (tmp_path / ".venv" / "bin" / "activate").touch()
    for ready in re.findall(r"\$\(VENV\)/(\.[\w-]+)", (ROOT / "Makefile").read_text("utf-8")):
        (tmp_path / ".venv" / ready).touch()
    write_text_files(tmp_path)
    write_wmt(tmp_path / "wmt" / "wmt14")
    write_tutorial_model(tmp_path / "model.pt")
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_models(folder, model, text):
    """`runs/demo`, `runs/mine` and `runs/teacher`, unless the page says how to make them."""
    commands = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S))
    for name in ("demo", "mine", "teacher"):
        if not re.search(rf"--output_dir runs/{name}|^make {name}", commands, flags=re.M):
            shutil.copytree(model, folder / "runs" / name)
            path = folder / "runs" / name / "tokenizer_config.json"
            # trained on a few tokens; its sinusoids are defined at any position
            settings = json.loads(path.read_text("utf-8")) | {"model_max_length": 128}
            path.write_text(json.dumps(settings), encoding="utf-8")


def run_python(example):
    missing = [n for n in OPTIONAL_LIBRARIES if importlib.util.find_spec(n) is None]
    if any(name in example.parsed for name in missing):
        compile(example.parsed, example.path, "exec")
    else:
        PythonEvaluator()(example)


def read_yaml(example):
    path = Path("block.yaml")
    path.write_text(example.parsed, encoding="utf-8")
    read_recipe(["--recipe", str(path)])


def run_page(text, path, environment):
    """Run all blocks of a page in the current folder.

    Raises:
        sybil.example.SybilFailure: a command failed; it holds what the command printed.
    """

    def run_bash(example):
        done = subprocess.run(
            ["/bin/bash", "-e", "-o", "pipefail", "-c", example.parsed],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return f"exit status {done.returncode}\n{done.stdout}{done.stderr}" * bool(done.returncode)

    runners = {"python": run_python, "yaml": read_yaml, "bash": run_bash}
    document = Document(text, str(path))
    for language, runner in runners.items():
        for region in CodeBlockParser(language, runner)(document):
            document.add(region)
    assert set(re.findall(r"^ *```(\w+)", text, flags=re.M)) <= {*runners, "text", "js"}
    for example in document.examples():
        example.evaluate()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_the_code_blocks_of_a_page_run(page, environment, clone, trained_run, fresh_accelerator):
    text = TEXTS[page]
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    add_models(clone, trained_run, text)
    run_page(text, ROOT / page, environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```bash\npython scripts/train.py --max_stepz 3\n```", "did you mean"),
        ("```bash\nfalse | cat\necho on\n```", "exit status 1"),
        ("```python\nx = 1\nx / 0\n```", "division by zero"),
        ("```yaml\nmax_stepz: 3\n```", "did you mean"),
    ],
)
def test_a_block_that_does_not_work_fails(block, message, environment, clone):
    with pytest.raises(Exception, match=message):
        run_page(f"# A page\n\n{block}\n", clone / "page.md", environment)


def mentions(pattern):
    found = {(page, match) for page, text in TEXTS.items() for match in re.findall(pattern, text)}
    assert len(found) > 5
    return found


def test_every_option_in_the_text_exists():
    sources = [*(ROOT / "hf_vanilla").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    known = set(re.findall(r"\w+", " ".join(path.read_text("utf-8") for path in sources)))
    known |= {option.name for option in fields(Seq2SeqTrainingArguments)}
    ours = mentions(r"(?:scripts/\w+\.py|hf-vanilla [a-z-]+)[^`\n]*? --(\w+)")
    ours |= mentions(r"`--(\w+)[ `=]")
    assert not {(page, option) for page, option in ours if option not in known}


def test_every_file_in_the_text_exists():
    named = mentions(r"(?<![\w./-])(?:scripts|tests|docs|hf_vanilla)/[\w./-]*\w")
    assert not {(page, name) for page, name in named if not (ROOT / name).exists()}


def test_the_page_of_the_models_lists_every_class():
    public = {name: getattr(hf_vanilla, name) for name in hf_vanilla.__all__}
    classes = {n for n, c in public.items() if isinstance(c, type) and issubclass(c, nn.Module)}
    listed = set(re.findall(r"^\| `(Vanilla\w+)` ", TEXTS["docs/models.md"], re.MULTILINE))
    assert listed == classes - {"VanillaPreTrainedModel"}


def test_every_extra_in_the_text_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {names for _, names in mentions(r"(?:\.|hf-vanilla)\[([\w,]+)\]")}
    assert set(",".join(named).split(",")) <= set(project["optional-dependencies"])
