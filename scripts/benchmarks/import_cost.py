"""What `import hf_vanilla` adds to transformers.

Medians of the CPU seconds (user + system) of new processes, which run in turn. The baseline imports
torch, transformers and the modules that transformers' own encoder-decoder models import: Marian's.
"""

import argparse
import resource
import statistics
import subprocess
import sys

PROGRAMS = {
    "transformers": "import torch, transformers, transformers.models.marian.modeling_marian as m;"
    "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TokenizersBackend",
    "hf_vanilla": "import hf_vanilla",
}


def cpu_seconds(program: str) -> float:
    """CPU time of one fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the CPU seconds of imports.")
    parser.add_argument("rounds", type=int, nargs="?", default=7)
    if (rounds := parser.parse_args().rounds) < 1:
        parser.error(f"rounds={rounds}: give 1 or more")
    for program in PROGRAMS.values():
        cpu_seconds(program)  # the first of each reads the disk
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            times[name].append(cpu_seconds(program))
    base, ours = (statistics.median(times[name]) for name in ("transformers", "hf_vanilla"))
    print(f"transformers {base:.2f} s, hf_vanilla {ours:.2f} s: {100 * (ours / base - 1):+.1f} %")
