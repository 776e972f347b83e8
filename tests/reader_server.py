"""Runs what readers type, each command in a fork of one process that has imported everything.

`reader_server.py SOCKET` waits for `reader_client.py`. A command reads and writes the streams of
its client, so pipes and redirections are those of the real shell.
"""

import contextlib
import io
import json
import os
import signal
import socket
import sys
import time
import traceback

import reader_commands


def serve(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        listener.settimeout(5)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child here
        parent = os.getppid()
        while os.getppid() == parent:  # it may be killed before it can end this process
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(None)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(connection)
            connection.close()


def answer(connection: socket.socket) -> None:
    """Run one command on its client's streams, tell its status, and end this process."""
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    log, began = os.fdopen(os.dup(1), "w"), time.monotonic()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    with connection.makefile("rw") as stream:
        asked = json.loads(stream.readline())
        os.chdir(asked["folder"])
        os.environ.update(asked["environment"])
        status = status_of(asked["words"])
        for printed in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError):
                printed.flush()
        stream.write(f"{status}\n")
    log.write(f"{time.monotonic() - began:.1f} s: {asked['words']}\n")
    log.flush()
    os._exit(status)


def status_of(words: list[str]) -> int:
    try:
        if words == ["blocks"]:
            run_blocks()
        else:
            reader_commands.run_command(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_blocks() -> None:
    """Run the Python blocks of one page in one namespace; a line of JSON in, a line of JSON out."""
    answers, names = os.fdopen(os.dup(1), "w"), {"__name__": "__main__"}
    for line in sys.stdin:
        asked, printed, failure = json.loads(line), io.StringIO(), ""
        # the line numbers of a traceback are those of the page
        text = "\n" * (asked["line"] - 1) + asked["text"]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                exec(compile(text, asked["file"], "exec"), names)
            except BaseException:
                failure = traceback.format_exc()
        answers.write(json.dumps({"printed": printed.getvalue(), "failure": failure}) + "\n")
        answers.flush()


if __name__ == "__main__":
    reader_commands.import_all()
    serve(sys.argv[1])
