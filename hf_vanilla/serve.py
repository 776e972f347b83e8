"""The service: models behind HTTP, and a page on which to see their attention weights.

The task of the first model decides which page is served. It loads nothing from other machines and
sends no usage data.
"""

import ipaddress
import logging
import re
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hf_vanilla.app.page import Served
from hf_vanilla.app.worker import Worker
from hf_vanilla.data.lines import read_lines
from hf_vanilla.families import load_part, task_entry
from hf_vanilla.hub.card import public_name
from hf_vanilla.loading import task_or_default
from hf_vanilla.options import Options, install_hint, option
from hf_vanilla.text.loading import DTYPES, demo_model

logger = logging.getLogger(__name__)

FIRST_PORT, PORTS = 7860, 100


@dataclass(frozen=True, kw_only=True)
class _ModelOptions(Options):
    """What is served, and at which port."""

    model: list[str] = option(
        [],
        "model folder or Hub id, once or several times; default: the package's number words",
        repeats_model=True,
    )
    port: int | None = option(
        None,
        f"port to listen on; default: the first free port from {FIRST_PORT}",
        at_least=1,
        at_most=65535,
    )


@dataclass(frozen=True, kw_only=True)
class ServeOptions(_ModelOptions):
    """Serve models over HTTP: translate, classify, detect, forecast; and their page."""

    dtype: str | None = option(
        None,
        "of translators: float32, bfloat16 or int8; default: as they were saved",
        choices=DTYPES,
    )
    models_folder: str | None = option(
        None, "folder whose models visitors of the page can choose too; default: none"
    )
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: reachable from other machines")
    origin: str | None = option(
        None,
        "another site whose pages may ask, such as https://example.org; also the public address "
        "behind a reverse proxy",
    )
    api_key: str | None = option(None, "file of keys, one a line; a request needs one of them")
    max_wait_ms: float = option(
        5, "longest time that a sentence waits for others of its batch", at_least=0, at_most=1000
    )
    max_batch_memory: int | None = option(
        None,
        "of translators: MiB that a batch may take beside the weights, by an upper bound; larger "
        "ones are split, and a sentence that needs more alone is refused",
        at_least=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.origin is not None and not re.fullmatch(r"https?://[^/\s]+", self.origin):
            raise ValueError(f"origin={self.origin!r}: give one such as https://example.org")
        if self.models_folder is not None and not Path(self.models_folder).is_dir():
            raise ValueError(f"models_folder={self.models_folder!r}: no such folder")


@dataclass(frozen=True, kw_only=True)
class AppOptions(_ModelOptions):
    """Serve a model on this machine and open its page: see its attention weights."""

    tracks: str = option(
        "walkers", "of a trajectory model: tracks to step through, a file or built-in ones"
    )
    frame_seconds: float | None = option(
        None, "of --tracks: time between two frame numbers that follow each other", above=0
    )
    columns: str = option("", "of --tracks: columns with other names, such as frame=timestep")


@dataclass(frozen=True)
class Settings:
    """How the models of a family are served.

    Attributes:
        dtype: numbers of translators.
        models_folder: whose models visitors of the page can choose too; None: none.
        tracks: of forecasters, to step through.
        frame_seconds: of `tracks`.
        columns: of `tracks`.
        max_batch_memory: MiB of a batch of translators.
    """

    dtype: str | None = None
    models_folder: str | None = None
    tracks: str = "walkers"
    frame_seconds: float | None = None
    columns: str = ""
    max_batch_memory: int | None = None


def serve(options: ServeOptions) -> None:
    """Serve models until SIGINT or SIGTERM; what was accepted is then still answered.

    Args:
        options: what to serve, and where.

    Raises:
        ImportError: the extra `serve` is not installed.
        ValueError: a model cannot be used, or the file has no key.
        OSError: a file or a model is not found, or the address cannot be used.
    """
    settings = Settings(
        options.dtype, options.models_folder, max_batch_memory=options.max_batch_memory
    )
    with listening(options, settings) as (server, address):
        logger.info("the service is at %s; Ctrl-C stops it", address)
        if not _is_loopback(options.host):
            logger.warning(
                "other machines can reach %s, without encryption%s: put a reverse proxy in front "
                "of it, and give its address by --origin",
                options.host,
                "" if options.api_key else " and without a key",
            )
        server.run()


def open_app(options: AppOptions) -> None:
    """Serve models to this machine, and open the page in a browser where there is one.

    Raises:
        ImportError: the extra `serve` is not installed.
        ValueError: a model cannot be used.
        OSError: nothing is found under a name, or the port is taken.
    """
    settings = Settings(None, "/", options.tracks, options.frame_seconds, options.columns)
    with listening(ServeOptions(model=options.model, port=options.port), settings) as found:
        server, address = found
        logger.info("the page is at %s; Ctrl-C stops it", address)
        with suppress(webbrowser.Error):
            webbrowser.get().open(address)
        server.run()


@contextmanager
def listening(options: ServeOptions, settings: Settings) -> Iterator[tuple[Any, str]]:
    """A server that has its address and its models; its `run` answers.

    Args:
        options: what to serve, and where.
        settings: of the families.

    Yields:
        An `app.server.Server`, and the address of the page.
    """
    try:
        from hf_vanilla.app.access import Access
        from hf_vanilla.app.server import Server
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ImportError(f"the service needs {error.name}: {install_hint('serve')}") from None
    keys: tuple[str, ...] = ()
    if options.api_key is not None:
        keys = tuple(filter(None, map(str.strip, read_lines(options.api_key))))
        if not keys:
            raise ValueError(f"api_key={options.api_key!r}: the file has no key")
    with bound(options.host, options.port) as listener:
        worker = Worker(max_wait_seconds=options.max_wait_ms / 1000)
        try:
            served = served_by(options.model or [demo_model()], settings, worker)
            origin = options.origin and options.origin.lower()
            access = Access(options.host, origin, keys, served.most_bytes)
            host, port = listener.getsockname()[:2]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
            yield Server(served, listener, worker, access), address
        finally:
            worker.close()


def served_by(models: list[str], settings: Settings, worker: Worker) -> Served:
    """What models answer together; the page is that of the first.

    Raises:
        ValueError: a model cannot be used, or two of a family have one name.
        OSError: nothing is found under a name.
    """
    families: dict[str, list[str]] = {}
    for name in models:
        others = families.setdefault(task_entry(task_or_default(name)).service, [])
        if any(public_name(name) == public_name(one) and name != one for one in others):
            raise ValueError(f"two models are named {public_name(name)!r}: rename a folder")
        others.append(name)
    every = [load_part(part)(names, settings, worker) for part, names in families.items()]
    return replace(
        every[0],
        calls={path: call for one in every for path, call in one.calls.items()},
        facts={path: fact for one in every for path, fact in one.facts.items()},
        most_bytes=max(one.most_bytes for one in every),
    )


def bound(host: str, port: int | None) -> socket.socket:
    """A socket that listens there, before a model is loaded.

    Raises:
        OSError: the address or port cannot be used.
    """
    ports = [port] if port else chain(range(FIRST_PORT, FIRST_PORT + PORTS), [0])
    for one in ports:
        try:
            family = socket.getaddrinfo(host, one, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, one), family=family)
        except OSError as error:
            reason = error
            if isinstance(error, socket.gaierror):
                break
    where = host if port is None else f"{host}, port {port}"
    raise OSError(
        f"cannot listen on {where}: {reason.strerror}; give another --host or --port"
    ) from None


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
