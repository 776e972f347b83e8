"""Run programs, each in a fork of one process that has imported everything.

`shell_server.py SOCKET SIDE` serves `shell_client.py`; on the side "without", importing this
package fails. A fork has folder, streams and environment of its client, also those variables that
libraries read while they are imported. With `SMALLER` in its environment, a command is one of
seconds, as `SMALLER` and `REPLACED` say.
"""

import contextlib
import gc
import importlib.metadata
import json
import os
import re
import runpy
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PROGRAMS = (
    "accelerate curl docker hf hf-vanilla lint-imports mypy pip pre-commit python python3 ruff"
    " sacrebleu torchrun uv"
)
OURS = re.compile(r"(?:hf-vanilla|python3? -m hf_vanilla) ([\w-]+)|python3? scripts/([\w/]+)\.py")
# options that make a command of minutes or days one of seconds
TINY = (
    "--model.vocab_size 290 --model.d_model 16 --model.encoder_layers 1 --model.decoder_layers 1"
    " --model.encoder_attention_heads 2 --model.decoder_attention_heads 2"
    " --model.encoder_ffn_dim 32 --model.decoder_ffn_dim 24 --max_steps 6 --save_steps 1"
    " --tokens_per_step 512 --tokens_per_batch 512 --max_length 128 --eval_steps 3"
    " --eval_sentences 2 --use_cpu True --decoding.num_beams 2 --decoding.max_new_tokens 3"
)
TINY_IMAGES = (
    "--model.image_size 8 --model.patch_size 4 --model.d_model 12 --model.encoder_layers 1"
    " --model.encoder_ffn_dim 16 --max_steps 2 --warmup_steps 1 --save_steps 1 --use_cpu True"
    " --images_per_step 4 --images_per_batch 4"
)
FINETUNE = "--max_steps 2 --use_cpu True --report_to none"
INITIAL = {
    "vit": "--max_steps 2 --warmup_steps 1 --save_steps 1 --use_cpu True --images_per_step 4"
    " --images_per_batch 4",
    "runs/tracks_own": "--max_steps 2 --warmup_steps 1 --use_cpu True --trackers none",
}
DEMO = "--max_steps 6 --eval_sentences 2 --use_cpu True"
SMALLER = {"train": TINY, "demo": DEMO, "finetune": FINETUNE}


def only_read_options(words):
    """Read the options as the command does, and end there."""
    options = importlib.import_module("hf_vanilla.options")
    parse = options.parse_options
    options.parse_options = lambda *given, **named: sys.exit(parse(*given, **named) and 0)
    run_program(words)


def only_launch_one(words):
    """Run the script or module of a launcher's command in this one process."""
    start = next(i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
    run_smaller(["python", *words[start:]])


def copy_small_archive(words):
    name = words[-1].rsplit("/", 1)[-1]
    shutil.copy(Path(os.environ["SMALL_ARCHIVES"]) / name, name)


def run_in_forks(words):
    """A sweep whose runs are forks too, with their own options."""
    sys.executable = shutil.which("python")
    del os.environ["SMALLER"]
    run_program(words)


BENCHMARKS = ("train", "generate", "vit", "startup", "gpu", "serve")
# these serve forever, need a network or several processes, or change the environment
REPLACED = {
    **dict.fromkeys((f"benchmarks/{name}" for name in BENCHMARKS), only_read_options),
    "sweep": run_in_forks,
    "app": only_read_options,
    "serve": only_read_options,
    **dict.fromkeys(("accelerate launch", "torchrun"), only_launch_one),
    "curl -LO": copy_small_archive,
    **dict.fromkeys(("hf", "pip", "uv", "docker", "pre-commit"), lambda _: None),
    **dict.fromkeys(("ruff", "mypy", "lint-imports"), lambda _: None),
    **dict.fromkeys(("python -m pip", "python3 -m venv", "python -m pytest"), lambda _: None),
}


def run_smaller(words):
    """Run a command of a page, which may take days, or change what other tests use."""
    corpus = sys.modules["hf_vanilla.data.corpus"]  # tens of thousands of numbers take a minute
    corpus.DENSE, corpus.SPARSE, corpus.EVALUATION_PAIRS = 100, 100, 12
    typed = " ".join([Path(words[0]).name, *words[1:]])
    ours = OURS.match(typed)
    name = (ours[1] or ours[2]).replace("-", "_") if ours else typed
    if "--workers" in words:  # Ray starts processes of its own
        return only_read_options(words)
    for start, action in REPLACED.items():
        if f"{name} ".startswith(f"{start} "):
            return action(words)
    smaller = TINY_IMAGES if "image_classification" in words else SMALLER.get(name, "")
    if "--initial_model" in words:
        smaller = INITIAL.get(words[words.index("--initial_model") + 1], smaller)
    if {"tracks_own", "demo_scenes"} & {
        *words
    }:  # the page's own options are small, and none is of translation
        smaller = "--use_cpu True"
    return run_program([*words, *smaller.split()])


def run_program(words):
    """Run a Python script, a module, or the entry point of an installed program."""
    name, sys.argv = Path(words[0]).name, words
    if name.startswith("python"):
        if words[1] == "-c":
            sys.argv = ["-c", *words[3:]]
            return exec(words[2], {"__name__": "__main__"})
        sys.argv = words[2:] if words[1] == "-m" else words[1:]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        run = runpy.run_module if words[1] == "-m" else runpy.run_path
        return run(sys.argv[0], run_name="__main__")
    if name == "hf-vanilla":  # of this tree, whatever is installed
        return sys.exit(importlib.import_module("hf_vanilla.commands").main())
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    return sys.exit(entry.load()())


def read_settings_of_the_hub():
    """Address, caches and token as if the libraries were imported now."""
    import huggingface_hub
    from transformers import dynamic_module_utils
    from transformers.utils import hub

    constants = importlib.reload(huggingface_hub.constants)
    huggingface_hub.hf_api.api.endpoint = constants.ENDPOINT
    if "datasets" in sys.modules:
        sys.modules["datasets"].config.HF_ENDPOINT = constants.ENDPOINT
    modules = os.environ.get("HF_MODULES_CACHE", os.path.join(constants.HF_HOME, "modules"))
    hub.HF_MODULES_CACHE = modules
    dynamic_module_utils.HF_MODULES_CACHE = modules


class Command(socketserver.BaseRequestHandler):
    """One command on the streams of its client, who gets the exit status."""

    def handle(self):
        _, streams, *_ = socket.recv_fds(self.request, 1, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        # new objects: those of the parent remember whether its own streams can seek
        modes = enumerate("rww")
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in modes)
        with self.request.makefile("rw") as stream:
            request = json.loads(stream.readline())
            os.chdir(request["folder"])
            os.environ.clear()
            os.environ.update(request["environment"])
            status = 0
            try:
                read_settings_of_the_hub()
                run = run_smaller if "SMALLER" in os.environ else run_program
                run(request["words"])
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                sys.stderr.write(f"{end.code}\n" if isinstance(end.code, str) else "")
            except BaseException:
                traceback.print_exc()
                status = 1
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
                sys.stderr.flush()
            stream.write(f"{status}\n")


@contextlib.contextmanager
def served(folder, side="with"):
    """Serve in a process of its own: the environment of a shell that finds `PROGRAMS`.

    Args:
        folder: for the programs, and the home of the shell.
        side: "without", if importing this package shall fail.
    """
    # the path of a socket may have a hundred characters, and pytest's folders are deep
    with tempfile.TemporaryDirectory() as place:
        environment = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(TESTS.parent),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "SACREBLEU": str(folder / "sacrebleu"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HOME": str(folder / "hub-cache"),
        }
        command = (sys.executable, str(TESTS / "shell_server.py"), f"{place}/socket", side)
        with subprocess.Popen(command, env=environment) as running:
            client = f"'{sys.executable}' -S -E '{TESTS / 'shell_client.py'}' '{place}/socket'"
            (folder / "bin").mkdir()
            for name in PROGRAMS.split():
                program = folder / "bin" / name
                program.write_text(f'#!/bin/sh\nexec {client} "$0" "$@"\n', encoding="utf-8")
                program.chmod(0o755)
            while not Path(f"{place}/socket").exists():
                assert running.poll() is None
                time.sleep(0.05)
            yield environment
            running.terminate()


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """A fork for each command."""


def imported(side):
    """Names of modules that most programs import."""
    if side == "without":
        sys.modules["hf_vanilla"] = None
        auto = [f"transformers.models.auto.{name}_auto" for name in ("modeling", "tokenization")]
        return ["torch", *auto, "transformers.modeling_utils", "transformers.pipelines"]
    commands = importlib.import_module("hf_vanilla.commands").COMMANDS.values()
    actions = [command.action.split(":")[0] for command in commands]
    others = ["sacrebleu", "sacremoses", "scipy.io", "torch.utils.tensorboard"]
    return ["matplotlib.pyplot", "transformers.trainer_seq2seq", *others, *actions]


if __name__ == "__main__":
    for module in imported(sys.argv[2]):
        importlib.import_module(module)
    sys.modules["torch"].set_num_threads(1)  # a fork would wait for the threads of its parent
    gc.freeze()  # no fork looks at what is imported
    Server(sys.argv[1], Command).serve_forever()
