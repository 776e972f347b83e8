"""Push a model to the Hub: weights, tokenizer, decoding settings, card and code in one commit.

Or push its page, as a Space.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, ModelCard, create_branch, create_commit, create_repo
from huggingface_hub.errors import HFValidationError

from hf_vanilla.families import load_part, task_entry
from hf_vanilla.loading import load_folder, model_folder, task_of_model
from hf_vanilla.models.saving_vanilla import save_with_code
from hf_vanilla.options import Options, option

from .card import ALIGNMENT_FILE, CARD_FILE, bare_card, pushed_card

SPACE_CARD = """\
---
title: {title}
sdk: static
app_file: index.html
---

A model that translates in the browser. This page of `hf-vanilla page` needs no server.
"""


@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """Push a model folder to the Hub, with its filled card."""

    model: str = option(text="folder written by training or save_pretrained")
    repo_id: str = option(text="where to push it: USER/NAME")
    private: bool = option(False, "make a new repository private; else as the account's default")
    revision: str | None = option(None, "branch to push to, made if it is new; else the main one")
    with_code: bool = option(False, "push the model's code too, to load it without hf_vanilla")
    space: bool = option(
        False, "push a page that translates in the browser, as a static Space, and not the model"
    )


def push_folder(options: PushOptions) -> str:
    """Push model, tokenizer, generation config, card and alignment head of a folder.

    Everything is one commit, so that the repository is never half a model.

    Returns:
        The address of the repository.

    Raises:
        ValueError: the folder holds no model, or its card is damaged.
        OSError: the Hub refuses; the repository is then as it was, or empty if it is new.
    """
    folder = Path(model_folder(options.model))
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; give one that training wrote")
    if options.space and options.with_code:
        raise ValueError("space and with_code: a Space has no code of the model; give one of them")
    if options.space:
        return _push_space(folder, options)
    model, tokenizer = load_folder(folder)
    card = _card_of(folder, model.config.model_type)
    with tempfile.TemporaryDirectory() as name:
        pushed = Path(name)
        if options.with_code:
            save_with_code(model, pushed, tokenizer)
        else:
            model.save_pretrained(pushed)
            if tokenizer is not None:
                tokenizer.save_pretrained(pushed)
        if (head := folder / ALIGNMENT_FILE).is_file():
            shutil.copyfile(head, pushed / ALIGNMENT_FILE)
        with _made(options) as made:
            pushed_card(card, made.repo_id, with_code=options.with_code).save(pushed / CARD_FILE)
            return _commit(pushed, made, options, "Push model, tokenizer and card")


def _card_of(folder: Path, model_type: str) -> ModelCard:
    """The card of a folder, or a bare one where it has none."""
    if not (file := folder / CARD_FILE).is_file():
        return bare_card(folder.resolve().name, model_type)
    try:
        return ModelCard.load(file)
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: its metadata is not YAML: {error}: correct it") from None


def _push_space(model: Path, to: PushOptions) -> str:
    """Push the page of a model with everything that it needs.

    Raises:
        ValueError: the page does not compute the model.
    """
    write_page = task_entry(task_of_model(str(model))).static_page
    if not write_page:
        raise ValueError(
            f"space: a page without a server computes translators only, and {model} is another "
            "model: make a Docker Space that runs hf-vanilla serve (docs/share.md)"
        )
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page"
        load_part(write_page)(str(model), page)
        with _made(to, repo_type="space", space_sdk="static") as made:
            title = json.dumps(made.repo_id.partition("/")[2])  # a name may look like a number
            (page / CARD_FILE).write_text(SPACE_CARD.format(title=title), encoding="utf-8")
            return _commit(page, made, to, "Push the page", repo_type="space")


def _commit(folder: Path, made: Any, to: PushOptions, message: str, **kind: Any) -> str:
    """All files of a folder in one commit; returns the address."""
    if to.revision is not None:
        create_branch(made.repo_id, branch=to.revision, exist_ok=True, **kind)
    # not upload_folder: newer clients divide what it uploads into several commits
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    added = [CommitOperationAdd(str(file.relative_to(folder)), file) for file in files]
    create_commit(made.repo_id, added, commit_message=message, revision=to.revision, **kind)
    return str(made) if to.revision is None else f"{made}/tree/{to.revision}"


@contextmanager
def _made(to: PushOptions, **kind: Any) -> Iterator[Any]:
    """The repository, made if it is new, whose owner is the user where none is named.

    Errors of network, login and server, each of a class of its own, become one `OSError`.
    """
    private = to.private or None  # False would publish where the default is private
    try:
        yield create_repo(to.repo_id, private=private, exist_ok=True, **kind)
    except Exception as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)  # the client names the file, the server why it refused
        answers = [each.response.status_code for each in chain if hasattr(each, "response")]
        hint = ""
        is_name = isinstance(error, HFValidationError)  # of a name that none can have
        if not (answers or is_name) or {401, 403} & {*answers}:
            hint = "; is there a network, and are you logged in (hf auth login)?"
        texts = [str(each) for each in chain]
        distinct = [text for i, text in enumerate(texts) if not any(text in t for t in texts[:i])]
        reasons = ": ".join(distinct)
        raise OSError(f"cannot push to {to.repo_id}: {reasons}{hint}") from None
