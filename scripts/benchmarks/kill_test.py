"""Kill one short training many times at random, go on by the same command, compare the weights.

    python scripts/benchmarks/kill_test.py [KILLS]

Ends with status 1 unless the final weights are those of a run that was never disturbed.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

from hf_vanilla.data.corpus import number_words
from hf_vanilla.files import read_json_lines

KILLS, SEED, PAIRS, STEPS = 20, 0, 600, 400
TRAIN = Path(__file__).resolve().parent.parent / "train.py"
# two micro-batches a step, epochs of a few steps, a checkpoint at every fifth
RECIPE = f"""
--max_steps {STEPS}
--train_source train.en --train_target train.de
--validation_source train.en --validation_target train.de
--save_steps 5 --logging_steps 2 --eval_steps 50 --eval_sentences 0
--tokens_per_step 600 --tokens_per_batch 300 --max_length 100 --learning_rate 0.005
--use_cpu True --trackers none --model.vocab_size 400 --model.d_model 32
--model.encoder_layers 1 --model.decoder_layers 1 --model.encoder_attention_heads 2
--model.decoder_attention_heads 2 --model.encoder_ffn_dim 64 --model.decoder_ffn_dim 64
"""


def begin(place: Path, name: str) -> subprocess.Popen:
    """The command that begins the run of a name, or goes on with it."""
    command = [sys.executable, str(TRAIN), "--output_dir", name, *RECIPE.split()]
    told = (place / "stderr").open("w")
    return subprocess.Popen(command, cwd=place, stderr=told, stdout=subprocess.DEVNULL)


def finish(place: Path, name: str) -> tuple[float, float]:
    """Let it run to its end; seconds to the first line of its log, and to the end."""
    started, first = time.monotonic(), 0.0
    process = begin(place, name)
    while process.poll() is None:
        time.sleep(0.05)
        if not first and (place / name / "log.jsonl").is_file():
            first = time.monotonic() - started
    if process.returncode:
        sys.exit((place / "stderr").read_text())
    return first, time.monotonic() - started


def kill(place: Path, name: str, *, pause: float, last: int, wait: float) -> str:
    """Go on, kill after `pause` seconds or `wait` after step `last`; what then lies there."""
    folder, started = place / name, time.monotonic()
    process = begin(place, name)
    while process.poll() is None and time.monotonic() - started < pause:
        lines = read_json_lines(folder / "log.jsonl")
        if lines and lines[-1]["step"] >= last:
            time.sleep(wait)  # anywhere within the next steps, saving included
            break
        time.sleep(0.02)
    if process.poll() is not None:
        sys.exit(f"it ended by itself: {(place / 'stderr').read_text()}")
    process.kill()
    process.wait()
    told = read_json_lines(folder / "log.jsonl")
    steps = [p.name.removeprefix("checkpoint-") for p in folder.glob("checkpoint-*[0-9]")]
    half = [path.name for path in folder.glob("*.partial")]
    return (
        f"{time.monotonic() - started:.2f} | {told[-1]['step'] if told else '-'} | "
        f"{max(map(int, steps), default='-')} | {', '.join(half) or '-'}"
    )


def main(kills: int) -> bool:
    """Print the table; whether the weights are the same."""
    draw = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pairs = [number_words(n) for n in draw.sample(range(100_000), PAIRS)]
        for side, language in (("source", "en"), ("target", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (place / f"train.{language}").write_text(text, encoding="utf-8")
        start, whole = finish(place, "undisturbed")
        print(f"undisturbed: {start:.1f} s to the first lines of the log, {whole:.1f} s in all\n")
        print("| kill | after seconds | last step told | newest checkpoint | half-written |")
        print("|---|---|---|---|---|")
        for number in range(1, kills + 1):
            # every fourth is killed while it starts, the others some steps further than the last
            pause = draw.uniform(0.3, 1) * start if number % 4 == 0 else float("inf")
            last = int(STEPS * (number - draw.random()) / (kills + 1))
            wait = draw.uniform(0, 0.5)
            told = kill(place, "killed", pause=pause, last=last, wait=wait)
            print(f"| {number} | {told} |", flush=True)
        finish(place, "killed")
        first, second = (
            load_file(place / name / "model.safetensors") for name in ("undisturbed", "killed")
        )
    same = first.keys() == second.keys() and all(first[n].equal(second[n]) for n in first)
    print(f"\nfinal weights of {kills} kills and of none: {'identical' if same else 'DIFFERENT'}")
    return same


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS))
