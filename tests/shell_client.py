"""A program that a page types: send its words and its streams to `shell_server.py`.

It runs without site packages and imports little, since a page has many commands.
"""

import json
import os
import socket
import sys

path, *words = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    socket.send_fds(connection, [b"\0"], [0, 1, 2])
    with connection.makefile("rw") as stream:
        stream.write(json.dumps({"words": words, "folder": os.getcwd()}) + "\n")
        stream.flush()
        sys.exit(int(stream.readline() or 1))
