"""A command that a page tells to type: hands its words and its streams to `reader_server.py`.

It runs without site packages and imports no more than it must: a page has many commands.
"""

import json
import os
import socket
import sys


def main() -> int:
    place, *words = sys.argv[1:]
    asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        with connection.makefile("rw") as stream:
            stream.write(json.dumps(asked) + "\n")
            stream.flush()
            return int(stream.readline() or 1)


if __name__ == "__main__":
    sys.exit(main())
