"""Every command as a user types it: once with success, once with a mistake.

Commands run in forks of one process, by `shell_server.py`, which only reads the options of `serve`
and `app`; these two, `serve` as the container starts it, are processes of their own.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import detection_files
import hub_server
import image_files
import image_models
import pytest
import small_run
import yaml

from hf_vanilla.commands import COMMANDS
from hf_vanilla.images.batches import image_processor
from hf_vanilla.text.loading import demo_model

ROOT = Path(__file__).resolve().parents[1]
FILES = "--train_source train_source.txt --train_target train_target.txt"
PAIRS = "--source validation_source.txt"
# by command: a line that succeeds, what stdout matches, what stderr has, files that it writes; and
# a line with a mistake, its status, its message
ROWS = {
    "demo": (
        ("demo --output_dir runs/demo", "unseen numbers:\nBLEU", "step 6", "runs/demo/curves.png"),
        ("demo --max_stepz 3", 2, "did you mean --max_steps?"),
    ),
    "train": (
        (f"train {FILES} --output_dir runs/typed", "runs/typed$", "wrote ", "runs/typed/README.md"),
        ("train", 2, "name a recipe or data, for example"),
    ),
    "translate": (
        ("echo forty-two | hf-vanilla translate", "^zweiundvierzig$", "names another one", ""),
        ("translate --input nowhere.txt", 1, "nowhere.txt: no such file"),
    ),
    "translate-corpus": (
        (
            "translate-corpus --model text --input two.txt --output corpus",
            "corpus",
            "",
            "corpus",
        ),
        ("translate-corpus --model text --input two.txt", 2, "missing: --output"),
    ),
    "classify": (
        ("classify --model vit album/blue/0.png", r"^album/blue/0.png,LABEL_\d,0\.\d+", "", ""),
        ("classify --model vit", 2, "missing: paths of images"),
    ),
    "detect": (
        ("detect --model detr --threshold 0.01 boxes/a.png", "^{.*boxes/a.png", "", ""),
        ("detect --model detr nothing.png", 1, "nothing.png: no such file"),
    ),
    "inspect-data": (
        ("inspect-data --dataset boxes/boxes.json --images boxes", "dog", "", ""),
        ("inspect-data --dataset nothing.json", 1, "nothing.json"),
    ),
    "forecast": (
        (
            "forecast --model constant_velocity --input walkers --output futures.csv",
            "",
            "",
            "futures.csv",
        ),
        ("forecast --model constant_velocity --input nowhere.csv", 1, "nowhere.csv"),
    ),
    "evaluate": (
        (
            "evaluate --translations two.txt --reference two.txt",
            "^exact match 100.0 % of 2",
            "",
            "",
        ),
        ("evaluate --translations two.txt --reference one.txt", 1, "one.txt ends after line 1"),
    ),
    "score": (
        ("score --model text --source one.txt --target one.txt", r"^-\d+\.\d+", "", ""),
        ("score --model text --source one.txt --target two.txt", 1, "one.txt ends after line 1"),
    ),
    "align": (
        ("align --model text --source one.txt --target one.txt", r"^\d+-\d+", "", ""),
        ("align --model text", 1, "give both --source and --target"),
    ),
    "convert": (
        (
            "convert --format to-vit --input vit --output theirs",
            "theirs$",
            "",
            "theirs/config.json",
        ),
        ("convert --format onnx", 1, "choose one of agentformer, detr"),
    ),
    "export": (
        ("export --model text --output ct2", "ct2$", "", "ct2/model.bin"),
        ("export --model vit --output ct2b", 1, "vit"),
    ),
    "quantize": (
        ("quantize --model text --output int8", "int8$", "", "int8/model.safetensors"),
        ("quantize --model text --output text", 1, "text"),
    ),
    "distill": (
        (
            "distill --teacher text --source two.txt --student student.yaml --output distilled",
            r"^\| distilled/student \| \d",
            "hf-vanilla quantize --model distilled/student",
            "distilled/report.md",
        ),
        (
            "distill --teacher text --source two.txt --student numbers --output none",
            1,
            "give a recipe of translation with validation_source",
        ),
    ),
    "plot": (
        ("plot attention --model text --sentence one --output p.png", "p.png$", "", "p.png"),
        ("plot atention", 2, "did you mean 'attention'?"),
    ),
    "push": (
        ("push --model text --repo_id ada/name", "ada/name", "", ""),
        ("push --model nowhere --repo_id ada/name", 1, "nowhere: no such folder"),
    ),
    "serve": (
        ("serve --model text --model vit --port 8000", "", "", ""),
        ("serve --port 0", 1, "port=0: give a number from 1 to 65535"),
    ),
    "app": (
        ("app --model text", "", "", ""),
        ("app --port 0", 1, "port=0: give a number from 1 to 65535"),
    ),
    "page": (
        (
            "page --model text --model text --output site",
            "site$",
            "",
            "site/model2/model.safetensors",
        ),
        ("page", 2, "missing: --output"),
    ),
    "train-tokenizer": (
        (
            "train-tokenizer --files two.txt --vocab_size 280 --output tok",
            "tok$",
            "",
            "tok/tokenizer.json",
        ),
        ("train-tokenizer --files nowhere.txt --output tok2", 1, "nowhere.txt"),
    ),
    "prepare": (
        (f"prepare --tokenizer text {FILES} --output shards", "shards", "", "shards"),
        (f"prepare --tokenizer text {FILES}", 2, "missing: --output"),
    ),
    "sweep": (
        ("sweep sweep.yaml", "finished: 1 of 1 runs", "", "runs/sweep/small-seed-0"),
        ("sweep", 2, "give one YAML file of runs"),
    ),
    "compare": (
        ("compare sweep.yaml --output t.tex", r"^\| small \| 1 \|", "", "t.tex"),
        ("compare sweep.yaml --output t.docx", 1, "t.docx': its end is one of .md, .tex"),
    ),
    "average": (
        ("average --run runs/typed --last 2 --output mean", "mean$", "", "mean/model.safetensors"),
        ("average --run nowhere --output mean2", 1, "nowhere"),
    ),
}
DOUBTED = "A man is riding a bike.\n\nforty-two\n"


@pytest.fixture(scope="module")
def typed(shell, tmp_path_factory):
    """Types a line in a folder with text, images, boxes and a small model of each family."""
    folder = tmp_path_factory.mktemp("typed")
    files = small_run.write_corpus(folder)
    shutil.copytree(demo_model(), folder / "text")
    (folder / "one.txt").write_text("forty-two\n")
    (folder / "two.txt").write_text("forty-two\none thousand nine\n")
    image_files.colour_folder(folder / "album", count=1)
    image_models.vit(image_size=8, patch_size=4, id2label={0: "a", 1: "b"}).save_pretrained(
        folder / "vit"
    )
    image_processor((8, 8), [0.3] * 3, [0.4] * 3).save_pretrained(folder / "vit")
    detection_files.tiny_detector(folder / "detr")
    detection_files.write_coco(folder / "boxes")
    sweep = {"output_dir": "runs/sweep", "seeds": [0], "runs": {"small": {}}}
    options = {**small_run.TRAINING, **files, "max_steps": 2, "average_checkpoints": 1}
    sweep["options"] = {**options, "model": small_run.MODEL}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    (folder / "student.yaml").write_text(yaml.safe_dump(options))
    with hub_server.HubServer() as hub:
        told = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub_server.TOKEN, "SMALLER": "1"}

        def run(line, text=""):
            return subprocess.run(
                ["/bin/bash", "-e", "-o", "pipefail", "-c", line],
                cwd=folder,
                env={**shell, **told},
                input=text,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )

        run.folder = folder
        yield run


def test_every_command_has_a_row():
    assert list(ROWS) == list(COMMANDS)


@pytest.mark.parametrize("name", ROWS)
def test_a_command_as_typed(name, typed):
    (line, stdout, stderr, file), (wrong, status, message) = ROWS[name]
    done = typed(line if "hf-vanilla" in line else f"hf-vanilla {line}")
    assert done.returncode == 0, done.stderr
    assert re.search(stdout, done.stdout, flags=re.M), done.stdout
    assert stderr in done.stderr
    assert "Traceback" not in done.stderr
    assert (typed.folder / file).exists()
    failed = typed(f"hf-vanilla {wrong}")
    assert (failed.returncode, failed.stdout) == (status, "")
    *_, error = [one for one in failed.stderr.splitlines() if one.startswith("error: ")]
    assert message in error
    assert "Traceback" not in failed.stderr


def test_a_bare_train_shows_three_examples_that_are_read(typed):
    examples = typed("hf-vanilla train").stderr.splitlines()[1:]
    assert len(examples) == 3
    for line in examples:
        done = typed(f"{line} --max_stepz 0")  # the others are known
        assert "error: unknown: --max_stepz" in done.stderr


def test_what_is_doubtful_is_reported_and_translated(typed):
    done = typed("hf-vanilla translate", DOUBTED)
    assert done.stdout.splitlines()[1:] == ["", "zweiundvierzig"]
    assert "split into letters or bytes" in done.stderr
    assert "(lines: 1)" in done.stderr
    assert "there is no text to translate (lines: 2)" in done.stderr


def test_the_commands_that_the_demo_names_next_run_where_they_are_read(typed):
    shown = typed("hf-vanilla demo --output_dir runs/demo").stdout
    # the demo names the program of its environment, which the server stands for here
    following = re.sub(
        r"\S*/hf-vanilla|\S+ -m hf_vanilla", "hf-vanilla", shown.partition("Next:")[2]
    )
    lines = re.findall("^  (.*hf-vanilla.*)", following, re.M)
    assert len(lines) == 2
    for line in lines:  # the app is started below
        done = typed(line)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (line, done.stderr)


# --- processes ------------------------------------------------------------------------------------


def assert_answers(command):
    """Start a server, get its page, stop it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment["BROWSER"] = "true"  # the program, which does nothing
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            while server.poll() is None:
                try:
                    with urllib.request.urlopen(f"{address}/", timeout=60) as page:
                        assert page.status == 200
                        break
                except urllib.error.URLError:
                    time.sleep(0.2)
            assert server.poll() is None, server.stderr.read()
            with ThreadPoolExecutor() as client:
                # SIGTERM comes while it translates
                body = {"q": [f"{number} thousand" for number in range(100)], "target": "de"}
                data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
                request = urllib.request.Request(f"{address}/translate", data, kind)
                answer = client.submit(lambda: json.load(urllib.request.urlopen(request)))
                time.sleep(0.2)
                server.terminate()
                assert len(answer.result(120)["translatedText"]) == 100
        finally:
            server.terminate()
        assert server.wait(60) == -signal.SIGTERM
        assert "Traceback" not in server.stderr.read()


def test_the_service_answers_as_the_container_starts_it_and_the_app():
    pytest.importorskip("uvicorn")
    (listed,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text("utf-8"), re.M)
    program, *rest = json.loads(listed)
    assert program == "hf-vanilla"
    for arguments in (rest, ["app"]):
        assert_answers([sys.executable, "-m", "hf_vanilla", *arguments])


@pytest.mark.release
def test_help_is_a_process_of_its_own():
    command = [sys.executable, "-m", "hf_vanilla", "demo", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: hf-vanilla demo ")
