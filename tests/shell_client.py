"""A program that a test or a page types: send its words and its streams to `shell_server.py`.

It runs without site packages and imports little, since a page has many commands.
"""

import json
import os
import signal
import socket
import sys

path, *words = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    socket.send_fds(connection, [b"\0"], [0, 1, 2])
    with connection.makefile("rw") as stream:
        request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        stream.write(json.dumps(request) + "\n")
        stream.flush()
        status = stream.readline()
        if not status:  # the fork was killed
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(int(status))
