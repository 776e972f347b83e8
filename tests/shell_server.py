"""Run the commands of pages, each in a fork of one process that has imported everything.

`shell_server.py SOCKET` serves `shell_client.py`. A command runs as the page has it, unless
`SMALLER` or `REPLACED` names its beginning.
"""

import contextlib
import importlib.metadata
import json
import os
import runpy
import shutil
import socket
import socketserver
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    "matplotlib.pyplot",
    "sacrebleu",
    "transformers.trainer_seq2seq",
    "transformers.models.marian.modeling_marian",
)
TINY = (
    "--model.vocab_size 290 --model.d_model 16 --model.encoder_layers 1 --model.decoder_layers 1"
    " --model.encoder_attention_heads 2 --model.decoder_attention_heads 2"
    " --model.encoder_ffn_dim 32 --model.decoder_ffn_dim 24 --max_steps 6 --save_steps 1"
    " --tokens_per_step 512 --tokens_per_batch 512 --max_length 128 --eval_steps 3"
    " --eval_sentences 2 --use_cpu True --decoding.num_beams 2 --decoding.max_new_tokens 3"
)
# options that make a command of minutes or days one of seconds
SMALLER = {
    "train": TINY,
    "demo": TINY,
    "finetune": "--max_steps 2 --use_cpu True --report_to none",
}


def only_read_options(words):
    """Read the options as the command does, and stop there."""
    commands = importlib.import_module("hf_vanilla.commands")
    run = commands.run
    commands.run = lambda _action, *readers: run(lambda *_: None, *readers)
    with contextlib.redirect_stdout(None):
        run_program(words)


def only_print_help(words):
    run_program([*(word for word in words if not word.startswith("-")), "--help"])


def launched(words):
    """Run the script or module of a launcher's command in this one process."""
    start = next(i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
    run_command(["python", *words[start:]])


def downloaded(words):
    """Copy the small archive of that name."""
    name = words[-1].rsplit("/", 1)[-1]
    shutil.copy(Path(os.environ["SMALL_ARCHIVES"]) / name, name)


# commands that cannot run here: they serve forever, need a network, or change the environment
REPLACED = {
    "app": only_read_options,
    "scripts/benchmarks/train.py": only_read_options,
    "scripts/benchmarks/generate.py": only_read_options,
    "accelerate launch": launched,
    "torchrun": launched,
    "curl -LO https://dl.fbaipublicfiles.com/fairseq/": downloaded,
    "hf auth login": only_print_help,
    "hf upload": only_print_help,
    **dict.fromkeys(("pip", "uv", "python -m pip", "python -m venv", "docker"), lambda _: None),
    **dict.fromkeys(
        ("python -m pytest", "pre-commit", "mypy", "ruff", "lint-imports"), lambda _: None
    ),
}


def command_name(words):
    """A command without its options: `train` for `hf-vanilla train ...` and its other forms."""
    name, rest = words[0].rsplit("/", 1)[-1].replace("python3", "python"), words[1:]
    if rest[:2] == ["-m", "hf_vanilla"]:
        name, rest = "hf-vanilla", rest[2:]
    if name == "python" and rest and rest[0].endswith(".py"):
        is_benchmark = "benchmarks" in rest[0]
        return rest[0] if is_benchmark else Path(rest[0]).stem
    if name == "hf-vanilla" and rest:
        return rest[0].replace("-", "_")
    return " ".join([name, *rest])


def run_command(words):
    name = command_name(words)
    if "--workers" in words:  # Ray starts processes of its own
        return only_read_options(words)
    for start, action in REPLACED.items():
        if name == start or name.startswith(f"{start} ") or (start[-1] == "/" and start in name):
            return action(words)
    return run_program([*words, *SMALLER.get(name, "").split()])


def run_program(words):
    """Run a Python script, a module, or the entry point of an installed program."""
    name, sys.argv = Path(words[0]).name, words
    if name.startswith("python"):
        sys.argv = words[2:] if words[1] == "-m" else words[1:]
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        run = runpy.run_module if words[1] == "-m" else runpy.run_path
        return run(sys.argv[0], run_name="__main__")
    if name == "hf-vanilla":  # of this tree, whatever is installed
        return sys.exit(importlib.import_module("hf_vanilla.commands").main())
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    return sys.exit(entry.load()())


class Command(socketserver.BaseRequestHandler):
    def handle(self):
        """Run one command on the streams of its client, and send its exit status."""
        _, streams, *_ = socket.recv_fds(self.request, 1, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        with self.request.makefile("rw") as stream:
            request = json.loads(stream.readline())
            os.chdir(request["folder"])
            stream.write(f"{exit_status(request['words'])}\n")


def exit_status(words):
    status = 0
    try:
        run_command(words)
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    max_children = 20


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    commands = importlib.import_module("hf_vanilla.commands")
    actions = [command.action.split(":")[0] for command in commands.COMMANDS.values()]
    for module in (*IMPORTED, *actions):
        importlib.import_module(module)
    sys.modules["torch"].set_num_threads(1)  # a fork would wait for the threads of its parent
    corpus = sys.modules["hf_vanilla.data.corpus"]  # tens of thousands of numbers take a minute
    corpus.DENSE, corpus.SPARSE, corpus.HELD_OUT = 100, 100, 12
    Server(sys.argv[1], Command).serve_forever()
