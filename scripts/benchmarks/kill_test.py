"""Kill a training in each phase of its run, resume by the same command, compare all weights.

    python scripts/benchmarks/kill_test.py [KILLS] [--task image_classification]

The phases are start-up, training steps, writing a checkpoint, pruning old checkpoints, and writing
the finished model. Each gets its share of the kills, at random moments. A process is stopped before
it is killed, so that a kill counts for a phase only where the run's folder shows that phase. Each
process is forked from one that has imported the libraries, which takes most of a start-up and
touches no file of the run. Ends with status 1 unless all weights are those of a run that was never
killed.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median

from hf_vanilla.commands import run_command
from hf_vanilla.data.corpus import number_words
from hf_vanilla.files import read_json_lines
from hf_vanilla.tracks.options import BUILT_IN_AGENTS

KILLS, SEED, PAIRS, STEPS = 40, 0, 600, 240
POLLING_SECONDS = 0.0005
BUILT_IN = 90  # agents generated at each start, instead of thousands; validation is shorter too
PHASES = ("start-up", "steps", "checkpoint writing", "pruning", "final writing")
IMPORTED = ["hf_vanilla.training.run", "hf_vanilla.text.task", "matplotlib.pyplot"]
IMPORTED += ["hf_vanilla.images.task", "sklearn.datasets"]
IMPORTED += ["hf_vanilla.objects.task", "hf_vanilla.tracks.task"]
IMPORTED += ["hf_vanilla.tracks.scene_tasks"]
# two micro-batches a step, epochs of a few steps, a checkpoint at every fifth; the wide layers make
# files of some megabytes, so that writing and pruning take a few milliseconds
SHARED = f"""
--max_steps {STEPS} --save_steps 5 --logging_steps 2 --eval_steps 50
--use_cpu True --trackers none
"""
RECIPES = {
    "translation": """
--train_source train.en --train_target train.de
--validation_source train.en --validation_target train.de --eval_sentences 0
--tokens_per_step 600 --tokens_per_batch 300 --max_length 100 --learning_rate 0.005
--model.vocab_size 400 --model.d_model 32
--model.encoder_layers 1 --model.decoder_layers 1 --model.encoder_attention_heads 2
--model.decoder_attention_heads 2 --model.encoder_ffn_dim 2048 --model.decoder_ffn_dim 2048
""",
    "image_classification": """
--recipe digits_halves --images_per_step 64 --images_per_batch 32 --warmup_steps 20
--model.d_model 32 --model.encoder_layers 2 --model.encoder_attention_heads 2
--model.encoder_ffn_dim 4096 --model.dropout 0.1
""",
    "object_detection": """
--recipe digit_scenes --digits digits --validation_scenes 4 --images_per_step 4 --images_per_batch 2
--warmup_steps 20 --model.d_model 32 --model.encoder_layers 1 --model.encoder_attention_heads 2
--model.encoder_ffn_dim 2048 --model.decoder_layers 2 --model.decoder_attention_heads 2
--model.decoder_ffn_dim 2048 --model.dropout 0.1
""",
    "trajectories": """
--recipe demo_tracks --windows_per_step 32 --windows_per_batch 16 --warmup_steps 20
--model.d_model 32 --model.encoder_layers 1 --model.encoder_attention_heads 2
--model.encoder_ffn_dim 2048 --model.decoder_layers 1 --model.decoder_attention_heads 2
--model.decoder_ffn_dim 2048 --model.dropout 0.1
""",
    "joint_trajectories": """
--recipe demo_scenes --scenes_per_step 4 --scenes_per_batch 2 --max_agents 3 --warmup_steps 20
--model.num_modes 2 --model.latent_dim 4 --model.d_model 32 --model.encoder_layers 1
--model.encoder_attention_heads 2 --model.encoder_ffn_dim 8192 --model.posterior_layers 1
--model.decoder_layers 1 --model.decoder_attention_heads 2 --model.decoder_ffn_dim 64
--model.dropout 0.1
""",
    "scene_trajectories": """
--recipe junctions --scenes_per_step 4 --scenes_per_batch 2 --warmup_steps 20
--model.d_model 32 --model.num_modes 2 --model.num_seeds 2
--model.encoder_layers 1 --model.encoder_attention_heads 2 --model.encoder_ffn_dim 8192
--model.decoder_layers 1 --model.decoder_attention_heads 2 --model.decoder_ffn_dim 64
--model.dropout 0.1
""",
}
OPTIONS_FILE = "options"  # of the run, beside its data


def train(place: Path, name: str) -> None:
    """The command, in a process of its own.

    Args:
        place: where the data and the options are, and the file that gets stderr.
        name: of the run's folder in `place`.
    """
    os.chdir(place)
    errors = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, sys.stderr.fileno())
    os.dup2(errors, sys.stdout.fileno())
    options = Path(OPTIONS_FILE).read_text(encoding="utf-8").split()
    BUILT_IN_AGENTS.update(dict.fromkeys(BUILT_IN_AGENTS, BUILT_IN))
    run_command("train", ["--output_dir", name, *options])


class Run:
    """One process of the training command, and what its folder shows of it.

    Args:
        place: where the data are.
        name: of the run's folder in `place`.
    """

    def __init__(self, place: Path, name: str) -> None:
        self.folder, self._errors = place / name, place / "stderr"
        self._log = self._log_size()
        self._is_started = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self.process = context.Process(target=train, args=(place, name))
        self.process.start()

    def phase(self) -> str:
        """What the process does, from files that only this phase leaves in the folder."""
        if not self._is_started:
            before, self._log = self._log, self._log_size()
            # the start may shorten the log of the process before, and replaces that file
            is_same_file = before[0] == self._log[0]
            self._is_started = is_same_file and self._log[1] > before[1]
            return PHASES[0]
        names = [path.name for path in self.folder.iterdir()]
        if any(name.endswith(".old.partial") for name in names):
            return "pruning"
        if any(name.startswith("checkpoint-") and name.endswith(".partial") for name in names):
            return "checkpoint writing"
        return "final writing" if "files.partial" in names else "steps"

    def is_over(self) -> bool:
        """Whether the process has ended by itself.

        Raises:
            SystemExit: with an error.
        """
        if self.process.exitcode:
            sys.exit(self._errors.read_text())
        return self.process.exitcode == 0

    def step(self) -> int:
        """The last step in the log, 0 before the first."""
        entries = read_json_lines(self.folder / "log.jsonl")
        return entries[-1]["step"] if entries else 0

    def checkpoint(self) -> int:
        """The newest complete checkpoint, 0 before the first."""
        names = (path.name.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*"))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def suspend(self) -> None:
        """Stop the process; returns when it stands still, or has ended."""
        self._signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        with suppress(FileNotFoundError):  # it has ended
            while status.read_text().rpartition(") ")[2][0] not in "TZ":
                time.sleep(POLLING_SECONDS)

    def resume(self) -> None:
        """Let a stopped process go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(self.process.pid, number)

    def _log_size(self) -> tuple[int, int]:
        """Inode and size of the log; zeros where there is none."""
        try:
            status = (self.folder / "log.jsonl").stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size


def undisturbed(place: Path) -> dict[str, float]:
    """Let one run end by itself; returns the median time in each phase, in seconds."""
    run = Run(place, "undisturbed")
    times: dict[str, list[float]] = {phase: [0.0] for phase in PHASES}
    phase, since = PHASES[0], time.monotonic()
    while not run.is_over():
        time.sleep(POLLING_SECONDS)
        seen = run.phase()
        if seen != phase:
            now = time.monotonic()
            times[phase].append(now - since)
            phase, since = seen, now
    times[phase].append(time.monotonic() - since)
    return {phase: median(found[1:] or found) for phase, found in times.items()}


def kill_in(place: Path, phase: str, *, after: int, wait: float) -> tuple[Run, str]:
    """Resume, and kill in a phase.

    Args:
        place: where the data are.
        phase: one of `PHASES`.
        after: step from which on the phase counts; not for the start-up.
        wait: seconds between the beginning of the phase and the kill; where the phase is over by
            then, the next one of its kind is tried with half of it.

    Returns:
        The killed run, and its phase: after a start-up that was too short, another one.
    """
    run = Run(place, "killed")
    while not run.is_over():
        is_start = phase == PHASES[0]
        if not is_start and (run.phase() != phase or run.step() < after):
            time.sleep(POLLING_SECONDS)
            continue
        time.sleep(wait)
        run.suspend()
        seen = run.phase()
        if seen == phase or is_start:
            run.kill()
            return run, seen
        run.resume()
        wait /= 2
    if phase != PHASES[-1]:
        sys.exit(f"the run ended before a kill in {phase}: give it more STEPS")
    # the next process repeats the final writing
    return kill_in(place, phase, after=after, wait=wait)


def write_corpus(place: Path, draw: random.Random) -> None:
    """Number words in English and German."""
    pairs = [number_words(n) for n in draw.sample(range(100_000), PAIRS)]
    for side, language in (("source", "en"), ("target", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (place / f"train.{language}").write_text(text, encoding="utf-8")


def kill_often(place: Path, kills: int, usual: dict[str, float], draw: random.Random) -> None:
    """Kill a run so many times, spread over its steps, then let it end; prints a table."""
    print("| kill | phase | seconds after its start | last step logged | newest checkpoint |")
    print("|---|---|---|---|---|")
    final = kills // len(PHASES)
    counts: Counter[str] = Counter()
    for number in range(1, kills + 1):
        is_final = number > kills - final
        wanted = PHASES[-1] if is_final else PHASES[number % (len(PHASES) - 1)]
        after = 0 if is_final else int(STEPS * (number - draw.random()) / (kills - final + 1))
        began = time.monotonic()
        wait = draw.random() * usual[wanted]
        run, phase = kill_in(place, wanted, after=after, wait=wait)
        seconds = time.monotonic() - began
        step, checkpoint = run.step() or "-", run.checkpoint() or "-"
        print(f"| {number} | {phase} | {seconds:.2f} | {step} | {checkpoint} |", flush=True)
        counts[phase] += 1
    last = Run(place, "killed")
    while not last.is_over():
        time.sleep(0.05)
    print("\n" + ", ".join(f"{phase}: {counts[phase]} kills" for phase in PHASES))


def differing_files(place: Path) -> list[str]:
    """Weights and optimizer states, finished and of each checkpoint, that are not the same."""
    first, second = (
        {path.relative_to(place / name): path.read_bytes() for path in found}
        for name in ("undisturbed", "killed")
        if (found := sorted((place / name).rglob("*.safetensors")))
    )
    return sorted(str(p) for p in first.keys() | second.keys() if first.get(p) != second.get(p))


def main(kills: int, task: str) -> bool:
    """Print what happened; whether all weights are the same."""
    draw = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if task == "translation":
            write_corpus(place, draw)
        (place / OPTIONS_FILE).write_text(RECIPES[task] + SHARED, encoding="utf-8")
        usual = undisturbed(place)
        times = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in usual.items())
        print(f"median time in each phase of an undisturbed run, in seconds: {times}\n")
        kill_often(place, kills, usual, draw)
        differing = differing_files(place)
    same = "DIFFERENT: " + ", ".join(differing) if differing else "identical"
    print(f"\nall weights after {kills} kills and after none: {same}")
    return not differing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a training often, compare weights.")
    parser.add_argument("kills", type=int, nargs="?", default=KILLS)
    parser.add_argument("--task", choices=RECIPES, default="translation")
    arguments = parser.parse_args()
    sys.exit(not main(arguments.kills, arguments.task))
