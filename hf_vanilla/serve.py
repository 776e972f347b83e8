"""The app: use a model in a browser, and see its attention weights.

The task of the model decides which page is served. It loads nothing from other machines and sends
no usage data.
"""

import ipaddress
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_vanilla.app.component import style, theme
from hf_vanilla.families import load_part, task_entry
from hf_vanilla.loading import task_or_default
from hf_vanilla.options import Options, option
from hf_vanilla.text.loading import DTYPES, demo_model

logger = logging.getLogger(__name__)

EXAMPLE = "seven hundred forty-two thousand three hundred nineteen"


@dataclass(frozen=True, kw_only=True)
class AppOptions(Options):
    """Use a model in a browser: translate, classify images, forecast tracks; see its attention."""

    model: str | None = option(
        None, "model folder or Hub id; default: the package's model of number words"
    )
    fixed_model: bool | None = option(
        None,
        (
            "visitors cannot choose another model; default: true with --share or a --host "
            "that others can reach"
        ),
    )
    models_folder: str | None = option(
        None,
        (
            "folder whose models visitors can choose beside those of the Hub; default: any "
            "folder, but none with --share or a --host that others can reach"
        ),
    )
    dtype: str | None = option(
        None,
        "of a translator: float32, bfloat16 or int8; default: as it was saved",
        choices=DTYPES,
    )
    sentence: str | None = option(None, "initial text of the text box")
    max_tokens: int = option(256, "maximum source tokens of a sentence", at_least=1)
    tracks: str = option(
        "walkers", "of a trajectory model: tracks to step through, a file or built-in ones"
    )
    frame_seconds: float | None = option(
        None, "of --tracks: time between two frame numbers that follow each other", above=0
    )
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: reachable from other machines")
    port: int | None = option(
        None,
        "port to listen on; default: the first free port from 7860",
        at_least=1,
        at_most=65535,
    )
    share: bool = option(False, "create a public address through Gradio's server")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models_folder is not None and not Path(self.models_folder).is_dir():
            raise ValueError(f"models_folder={self.models_folder!r}: no such folder")

    @property
    def is_model_fixed(self) -> bool:
        """Whether visitors can use the given model only."""
        if self.fixed_model is not None:
            return self.fixed_model
        return self.is_public

    @property
    def is_public(self) -> bool:
        """Whether others than the users of this machine can reach the page."""
        return self.share or not _is_loopback(self.host)


def open_app(options: AppOptions) -> None:
    """Serve the app until Ctrl-C.

    Args:
        options: what to serve, and where.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: the model cannot be used.
        OSError: the port is taken.
    """
    if options.model is None:
        sentence = EXAMPLE if options.sentence is None else options.sentence
        options = replace(options, model=demo_model(), sentence=sentence)
    serve(options)


def serve(options: AppOptions, *, is_blocking: bool = True) -> Any:
    """Serve the app with the model of `options`; returns Gradio's `Blocks`.

    Args:
        options: what to serve, and where.
        is_blocking: return only when the server stops.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: no model is named, or it cannot be used.
        OSError: the address or port cannot be used.
    """
    _check_address(options.host, options.port)
    if options.model is None:
        raise ValueError("no model is named: give a model folder or a Hub id")
    blocks = page_of(options.model, options).blocks()
    blocks.queue(api_open=False)
    blocks.launch(
        server_name=options.host,
        server_port=options.port,
        share=options.share,
        quiet=not options.share,  # otherwise Gradio recommends share=True, which publishes the page
        prevent_thread_lock=True,
        theme=theme(),
        css=style(),
        footer_links=[],
        run_history=False,  # do not store what visitors type
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
    )
    logger.info("the page is at %s; Ctrl-C stops it", blocks.local_url)
    if is_blocking:
        blocks.block_thread()
    return blocks


def page_of(model: str, options: AppOptions) -> Any:
    """The page for a model's task.

    Raises:
        ValueError: the model cannot be used.
        OSError: nothing is found under that name.
    """
    return load_part(task_entry(task_or_default(model)).page)(model, options)


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _check_address(host: str, port: int | None) -> None:
    """Try the address before a model is loaded; Gradio's own check is slow and says less."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port or 0), family=family).close()
    except OSError as error:
        where = host if port is None else f"{host}, port {port}"
        raise OSError(
            f"cannot listen on {where}: {error.strerror}; give another --host or --port"
        ) from None
