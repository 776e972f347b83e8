"""The service: models behind HTTP, and a page on which to see their attention weights.

The task of the first model decides which page is served. It loads nothing from other machines and
sends no usage data.
"""

import ipaddress
import logging
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hf_vanilla.app.page import Page
from hf_vanilla.families import load_part, task_entry
from hf_vanilla.loading import task_or_default
from hf_vanilla.options import Options, install_hint, option
from hf_vanilla.text.loading import DTYPES, demo_model

logger = logging.getLogger(__name__)

FIRST_PORT, PORTS = 7860, 100


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    """Serve models over HTTP: translate, classify, detect, forecast; and their page."""

    model: list[str] = option(
        [],
        "model folder or Hub id, once or several times; default: the package's number words",
        repeats_model=True,
    )
    dtype: str | None = option(
        None,
        "of translators: float32, bfloat16 or int8; default: as they were saved",
        choices=DTYPES,
    )
    models_folder: str | None = option(
        None, "folder whose models visitors of the page can choose too; default: none"
    )
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: reachable from other machines")
    port: int | None = option(
        None,
        f"port to listen on; default: the first free port from {FIRST_PORT}",
        at_least=1,
        at_most=65535,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models_folder is not None and not Path(self.models_folder).is_dir():
            raise ValueError(f"models_folder={self.models_folder!r}: no such folder")


@dataclass(frozen=True, kw_only=True)
class AppOptions(Options):
    """Serve a model on this machine and open its page: see its attention weights."""

    model: list[str] = option(
        [],
        "model folder or Hub id, once or several times; default: the package's number words",
        repeats_model=True,
    )
    tracks: str = option(
        "walkers", "of a trajectory model: tracks to step through, a file or built-in ones"
    )
    frame_seconds: float | None = option(
        None, "of --tracks: time between two frame numbers that follow each other", above=0
    )
    port: int | None = option(
        None,
        f"port to listen on; default: the first free port from {FIRST_PORT}",
        at_least=1,
        at_most=65535,
    )


@dataclass(frozen=True)
class PageSettings:
    """What the page of a family is made with.

    Attributes:
        dtype: numbers of translators.
        models_folder: whose models visitors can choose too; None: none.
        tracks: of forecasters, to step through.
        frame_seconds: of `tracks`.
    """

    dtype: str | None = None
    models_folder: str | None = None
    tracks: str = "walkers"
    frame_seconds: float | None = None


def serve(options: ServeOptions) -> None:
    """Serve models until SIGINT or SIGTERM.

    Args:
        options: what to serve, and where.

    Raises:
        ImportError: the extra `serve` is not installed.
        ValueError: a model cannot be used.
        OSError: nothing is found under a name, or the address cannot be used.
    """
    settings = PageSettings(options.dtype, options.models_folder)
    with listening(options, settings) as (server, address):
        logger.info("the service is at %s; Ctrl-C stops it", address)
        if not _is_loopback(options.host):
            logger.warning(
                "%s can be reached from other machines, without encryption: put a reverse proxy in "
                "front of it",
                options.host,
            )
        server.run()


def open_app(options: AppOptions) -> None:
    """Serve models to this machine, and open the page in a browser where there is one.

    Raises:
        ImportError: the extra `serve` is not installed.
        ValueError: a model cannot be used.
        OSError: nothing is found under a name, or the port is taken.
    """
    settings = PageSettings(None, "/", options.tracks, options.frame_seconds)
    with listening(ServeOptions(model=options.model, port=options.port), settings) as found:
        server, address = found
        logger.info("the page is at %s; Ctrl-C stops it", address)
        with suppress(webbrowser.Error):
            webbrowser.get().open(address)
        server.run()


@contextmanager
def listening(
    options: ServeOptions, settings: PageSettings | None = None
) -> Iterator[tuple[Any, str]]:
    """A server that has its address and its models; its `run` answers.

    Args:
        options: what to serve, and where.
        settings: of the page.

    Yields:
        An `app.server.Server`, and the address of the page.
    """
    try:
        from hf_vanilla.app.server import Server
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ImportError(f"the service needs {error.name}: {install_hint('serve')}") from None
    with bound(options.host, options.port) as listener:
        page = page_of(options.model or [demo_model()], settings or PageSettings())
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        with Server(page, listener) as server:
            yield server, address


def page_of(models: list[str], settings: PageSettings) -> Page:
    """The page for the task of the first of these models.

    Raises:
        ValueError: a model cannot be used.
        OSError: nothing is found under a name.
    """
    return load_part(task_entry(task_or_default(models[0])).page)(models, settings)


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
