"""A reader of a page: a folder with a clone and the reader's own files, and a shell in it."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import fairseq_by_hand
import hub_server
import opus
import pages
import sacrebleu
import torch
import yaml
from datasets import Dataset
from pages import ROOT, commands_in, shell_text
from torch import nn

TESTS = Path(__file__).resolve().parent
CLONE = ("Makefile", "README.md", "constraints.txt", "pyproject.toml", "scripts")
# programs that are the machine's own; every other goes to the table
OWN_PROGRAMS = (
    "[ cat cd cp cut echo export head ls make mkdir mv paste printf rm sed set sort source tail "
    "tar test wc"
)
ENDS = ("train", "val", "test")
ENGLISH = "two men are at a stove . | a dog runs in the snow . | one woman reads a book ."
GERMAN = "zwei Männer stehen am Herd . | ein Hund läuft im Schnee . | eine Frau liest ein Buch ."

RECIPE = """\
output_dir: runs/recipe
train_source: train.en
train_target: train.de
validation_source: val.en
validation_target: val.de
"""


# --- stand-ins ----------------------------------------------------------------------------------


def pairs(count, seed):
    """Sentences of a few words of a made-up pair of languages, no source twice."""
    draw, found = random.Random(seed), {}
    words = list(zip(ENGLISH.split(), GERMAN.split(), strict=False))
    while len(found) < count:
        said = [draw.choice(words) for _ in range(draw.randint(2, 7))]
        found[" ".join(source for source, _ in said)] = " ".join(target for _, target in said)
    return list(found.items())


def write_text(folder):
    """The reader's own files: two for each purpose, and a folder to translate."""
    for seed, end in enumerate(ENDS):
        said = pairs(48 if end == "train" else 12, seed)
        for language, side in (("en", 0), ("de", 1)):
            text = "".join(pair[side] + "\n" for pair in said)
            (folder / f"{end}.{language}").write_text(text, encoding="utf-8")
    (folder / "corpus").mkdir()
    shutil.copy(folder / "test.en", folder / "corpus" / "part.txt")


def write_wmt(folder):
    """`wmt/wmt14` as the Hub has it, in a folder of that name, which `datasets` finds first."""
    (folder / "de-en").mkdir(parents=True)
    files = []
    for seed, split in enumerate(("train", "validation", "test")):
        rows = [{"translation": {"en": a, "de": b}} for a, b in pairs(24, seed)]
        name = f"de-en/{split}-00000-of-00001.parquet"
        Dataset.from_list(rows).to_parquet(folder / name)
        files.append({"split": split, "path": name})
    card = yaml.safe_dump({"configs": [{"config_name": "de-en", "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{card}---\n", encoding="utf-8")


def write_fairseq_archive(folder):
    """fairseq's archive of WMT 2016 in miniature, with its files in a folder, as published."""
    sides = (fairseq_by_hand.ENGLISH, "en"), (fairseq_by_hand.GERMAN, "de")
    split = [fairseq_by_hand.moses(line, lang) for lines, lang in sides for line in lines]
    codes = fairseq_by_hand.learned_codes(split)
    cut = fairseq_by_hand.cut_with(codes)
    words = fairseq_by_hand.dictionary([cut(line) for line in split])
    said = fairseq_by_hand.settings(share_all_embeddings=True)
    weights = fairseq_by_hand.weights(said, len(words), len(words))
    listed = fairseq_by_hand.dictionary_file(words)
    files = {"dict.en.txt": listed, "dict.de.txt": listed, "bpecodes": codes}
    inside = fairseq_by_hand.write_archive(folder / "unpacked", said, weights, files)
    name = "wmt16.en-de.joined-dict.transformer"
    with tarfile.open(folder / f"{name}.tar.bz2", "w:bz2") as archive:
        archive.add(inside, arcname=name)


def write_tutorial_model(path):
    """The state dict of PyTorch's translation tutorial, in miniature, with its 8 heads."""
    parts = {
        "transformer": nn.Transformer(16, 8, 1, 1, 29),
        "generator": nn.Linear(16, 37),
        "src_tok_emb.embedding": nn.Embedding(43, 16),
        "tgt_tok_emb.embedding": nn.Embedding(37, 16),
    }
    weights = {
        f"{part}.{name}": tensor
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    torch.save(weights, path)


def write_sacrebleu_set(folder):
    """Where sacreBLEU keeps a set of WMT 2014 that it has fetched before."""
    folder = folder / "wmt14" / "full"
    folder.mkdir(parents=True)
    sides = dict(zip(("src", "ref"), zip(*pairs(6, seed=9), strict=True), strict=True))
    for name in sacrebleu.DATASETS["wmt14/full"].fieldnames("en-de"):
        text = "".join(line + "\n" for line in sides.get(name, ["none"] * 6))
        (folder / f"wmt14_full.en-de.{name}").write_text(text, encoding="utf-8")


def fill_hub(hub, folder):
    """The models of others that pages name."""
    opus.write_folder(folder / "opus")
    name = "Helsinki-NLP/opus-mt-en-de"
    repository = hub.repositories[name] = hub_server.Repository(is_private=False)
    files = {
        path.name: hub_server.File(path.read_bytes(), path.name.endswith(hub_server.LARGE_FILES))
        for path in (folder / "opus").iterdir()
    }
    repository.commit("main", files)


# --- the shell ----------------------------------------------------------------------------------


class Desk:
    """What all pages share: the stand-ins, the process that runs commands, the programs to type."""

    def __init__(self, folder, hub, model):
        self.folder, self.model = folder, model
        self.stand_ins = folder / "stand-ins"
        self.stand_ins.mkdir()
        write_fairseq_archive(self.stand_ins)
        write_sacrebleu_set(self.stand_ins / "sacrebleu")
        fill_hub(hub, self.stand_ins)
        self.environment = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS))),
            "STAND_INS": str(self.stand_ins),
            "SACREBLEU": str(self.stand_ins / "sacrebleu"),
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(folder / "hub-cache"),
            "HF_TOKEN": hub_server.TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def __enter__(self):
        # the name of a socket may have a hundred characters, and pytest's folders are deep
        self.place = tempfile.TemporaryDirectory(prefix="desk-")
        self.socket = Path(self.place.name) / "socket"
        self.log = (self.folder / "server.log").open("w")
        command = [sys.executable, str(TESTS / "reader_server.py"), str(self.socket)]
        self.server = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        while not self.socket.exists():
            if self.server.poll() is not None:
                raise RuntimeError(Path(self.log.name).read_text(encoding="utf-8"))
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()
        self.log.close()
        self.place.cleanup()

    def write_program(self, path):
        """A program that asks the server to do what the table says, under the name of its file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        client = f"'{sys.executable}' -S -E '{TESTS / 'reader_client.py'}' '{self.socket}'"
        path.write_text(f'#!/bin/sh\nexec {client} "$0" "$@"\n', encoding="utf-8")
        path.chmod(0o755)

    def write_programs(self, folder, blocks):
        """Every program that the blocks type and that is not the machine's own."""
        make = (ROOT / "Makefile").read_text(encoding="utf-8")
        names = {"pip", *re.findall(r"\$\(BIN\)/(\w+)", make)}
        for block in blocks:
            if block.language in pages.SHELLS:
                names |= {words[0].rsplit("/", 1)[-1] for words in commands_in(shell_text(block))}
        for name in names - set(OWN_PROGRAMS.split()):
            self.write_program(self.folder / "bin" / name)
            self.write_program(folder / ".venv" / "bin" / name)


class Reader:
    """Reads one page in a folder of its own, from its first block to its last."""

    def __init__(self, desk, folder, blocks):
        self.desk, self.folder, self.kernel = desk, folder, None
        for name in CLONE:
            # a copy: what a page writes must not come into the real one
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name)
        desk.write_programs(folder, blocks)
        (folder / ".venv" / "bin" / "activate").write_text("")
        (folder / ".venv" / ".ready").write_text("")
        write_text(folder)
        write_wmt(folder / "wmt" / "wmt14")
        write_tutorial_model(folder / "model.pt")
        (folder / "RECIPE.yaml").write_text(RECIPE, encoding="utf-8")
        text = "".join(block.text for block in blocks)
        for name in ("demo", "mine"):
            if not self.makes(name, text):
                shutil.copytree(desk.model, folder / "runs" / name)
                # it has sinusoids for any length, and was trained on a few words only
                told = folder / "runs" / name / "tokenizer_config.json"
                settings = json.loads(told.read_text("utf-8")) | {"model_max_length": 128}
                told.write_text(json.dumps(settings), encoding="utf-8")

    @staticmethod
    def makes(name, text):
        """Whether the page itself tells how to make this model."""
        return f"--output_dir runs/{name}" in text or (name == "demo" and "make demo" in text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.kernel is not None:
            self.kernel.stdin.close()
            self.kernel.wait(timeout=60)
            self.kernel.stdout.close()

    def type(self, text):
        """Type into a shell; what it prints, and what went wrong."""
        done = subprocess.run(
            ["/bin/bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.desk.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=300,
        )
        printed, told = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
        return printed, f"exit status {done.returncode}\n{printed}{told}" * bool(done.returncode)

    def execute(self, text, block):
        """Execute Python in the one namespace of the page; what it prints, and what went wrong."""
        if self.kernel is None:
            client = [sys.executable, "-S", "-E", TESTS / "reader_client.py", self.desk.socket]
            self.kernel = subprocess.Popen(
                [*map(str, client), "blocks"],
                cwd=self.folder,
                env=self.desk.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        asked = {"text": text, "line": block.line, "file": str(ROOT / block.page)}
        self.kernel.stdin.write(json.dumps(asked) + "\n")
        self.kernel.stdin.flush()
        answer = json.loads(self.kernel.stdout.readline())
        failure = answer["failure"]
        return answer["printed"], failure and f"{answer['printed']}{failure}"
