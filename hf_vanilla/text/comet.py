"""COMET of translations, by the command `comet-score` of unbabel-comet (Rei et al. 2020).

unbabel-comet 2.2 needs transformers below 5, so it is installed in an environment of its own and
run as a program; the command must be on the PATH.
"""

import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

COMMAND = "comet-score"
_SYSTEM_SCORE = re.compile(r"\tscore: (\S+)\s*$", re.MULTILINE)


def check_comet() -> str:
    """The path of the command.

    Raises:
        ImportError: it is not installed.
    """
    path = shutil.which(COMMAND)
    if path is None:
        raise ImportError(
            f"COMET needs the command {COMMAND}, and it is not on the PATH: install unbabel-comet "
            "in an environment of its own (it needs transformers below 5), for example by "
            "pipx install unbabel-comet"
        )
    return path


def comet_score(
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    *,
    model: str,
) -> float:
    """COMET of a set of translations, 100 times the number that the command reports.

    Args:
        sources: one sentence each; line breaks count as spaces.
        translations: as many.
        references: as many.
        model: Hub id of a COMET model, which the command downloads, or a checkpoint file.

    Raises:
        ImportError: the command is not installed.
        OSError: the command failed; the message has its last line.
        ValueError: the counts differ, or there is nothing to score.
    """
    if not sources or not len(sources) == len(translations) == len(references):
        raise ValueError(
            f"{len(sources)} sources, {len(translations)} translations, {len(references)} "
            "references: COMET needs one line of each per sentence"
        )
    command = check_comet()
    with tempfile.TemporaryDirectory() as folder:
        files = {"-s": sources, "-t": translations, "-r": references}
        arguments = [command, "--model", model, "--quiet", "--only_system"]
        arguments += ["--gpus", "1" if torch.cuda.is_available() else "0"]
        for flag, texts in files.items():
            path = Path(folder) / f"{flag[1:]}.txt"
            lines = (" ".join(text.split()) + "\n" for text in texts)
            path.write_text("".join(lines), encoding="utf-8")
            arguments += [flag, str(path)]
        done = subprocess.run(
            arguments,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a message with other bytes
            stdin=subprocess.DEVNULL,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise OSError(f"{COMMAND} --model {model} failed: {last[0]}")
    found = _SYSTEM_SCORE.findall(done.stdout)
    score = float(found[-1]) if found else math.nan
    if not math.isfinite(score):
        raise OSError(f"{COMMAND} --model {model} reported no score: {done.stdout.strip()!r}")
    return 100 * score
