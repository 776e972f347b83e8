"""One training at a time per folder."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; of several processes of one run, the first holds it.

    The lock is a file beside the folder. The operating system releases it when the process ends,
    however it ends, so a lock file that a killed process left does not matter.

    Raises:
        ValueError: another process holds it; the message names that process.
    """
    if fcntl is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    folder = folder.resolve()
    path = folder.with_name(f"{folder.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ValueError(
                f"{folder} is in use by {holder}: wait until it ends, or choose another output_dir"
            ) from None
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # its holder removed the file meanwhile
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()
