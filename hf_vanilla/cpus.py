"""How many CPUs a process may use, the variables that tell torch, and freed memory.

This file imports only the standard library: it is read before torch is.
"""

import ctypes
import math
import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

PRODUCTS_VARIABLE, PRODUCTS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", 48
PRODUCTS_OF_SHAPE = 100  # in a training step: each weight, its gradients, and attention


def limit_torch(environment: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Set variables for the speed and the memory of torch on CPUs, before torch is imported.

    Threads of OpenMP wait actively for each other, which takes the CPU from other processes: beside
    four busy processes, training is five times faster with a short wait (`GOMP_SPINCOUNT=3000`),
    and one tenth slower on an idle machine. Torch also starts one thread per CPU, although the CPU
    quota of a container may allow fewer.

    oneDNN compiles each matrix product for its shape, and keeps the latest 1,024, about 0.3 MB
    each. A search has many shapes, which rarely come again: with 48 in the cache, 600 sentences in
    int8 take 270 MiB less, and as long. An image takes 37 in ResNet-50.

    Where Linux gives huge pages to programs that ask for them, torch asks for arrays of at least
    2 MiB, whose addresses a processor then translates faster. Variables that the user has set stay
    as they are.

    Args:
        environment: `os.environ`.
        root: where the file system begins.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = "3000"
    environment.setdefault(PRODUCTS_VARIABLE, str(PRODUCTS))
    if "[madvise]" in _text(root / "sys/kernel/mm/transparent_hugepage/enabled"):
        environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    allowed = usable_cpus(root)
    # without a quota torch's own choice: one thread per physical core
    if allowed < _cpus_of_process() and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(allowed)


def keep_compiled_products(environment: MutableMapping[str, str], shapes: int) -> None:
    """Let oneDNN keep the products of a training step of each shape that batches have.

    Compiling a product takes ten times as long as computing it, so training with more shapes than
    the cache holds compiles most of them in every step. To be called before the first product.

    Args:
        environment: `os.environ`, after `limit_torch`; another number of the user stays.
        shapes: number of different shapes of batches.
    """
    if environment.get(PRODUCTS_VARIABLE) == str(PRODUCTS):
        environment[PRODUCTS_VARIABLE] = str(PRODUCTS_OF_SHAPE * shapes)


def keep_freed_memory() -> None:
    """Let the C library reuse big arrays instead of handing each back to the kernel.

    Training on a CPU frees and allocates the same large arrays at every step; by default each comes
    back as thousands of page faults, which can take longer than the arithmetic. Linux with glibc
    only; elsewhere nothing happens.
    """
    # <malloc.h>: M_MMAP_MAX = -4, M_TRIM_THRESHOLD = -1
    with suppress(OSError, AttributeError):
        allocator = ctypes.CDLL("libc.so.6")
        allocator.mallopt(-4, 0)
        allocator.mallopt(-1, 2**31 - 1)


def return_freed_memory() -> None:
    """Hand freed memory between arrays in use back to the kernel; Linux with glibc only.

    By default glibc keeps it, and with batches of changing shapes a process grows.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use: those it is bound to, within the quota of its container.

    Args:
        root: where the file system begins.
    """
    quota = cpu_quota(root)
    allowed = _cpus_of_process()
    return allowed if quota is None else min(allowed, max(1, math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the control groups of this process allow; None without a limit, or off Linux."""
    quotas = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # version 2 has no controllers in this file and one limit in each parent folder
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = base / path.lstrip("/")
        for parent in (base, *(p for p in (folder, *folder.parents) if base in p.parents)):
            fields = _text(parent / "cpu.max").split() or [
                _text(parent / "cpu.cfs_quota_us").strip(),
                _text(parent / "cpu.cfs_period_us").strip(),
            ]
            if fields[0].isdecimal() and int(fields[1] or 0):  # without a limit: "max" or -1
                quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpus_of_process() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
