"""Push a model to the Hub: weights, tokenizer, decoding settings, card and code in one commit."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitOperationAdd,
    ModelCard,
    create_branch,
    create_commit,
    create_repo,
)
from transformers import PreTrainedModel

from hf_vanilla.loading import load_folder, model_folder
from hf_vanilla.models.saving_vanilla import save_with_code
from hf_vanilla.options import Options, option

from .card import CARD_FILE, bare_card, pushed_card

__all__ = ["PushOptions", "Repository", "push_folder", "push_model"]


@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """Push a model folder to the Hub, with its filled card."""

    model: str = option(text="folder written by training or save_pretrained")
    repo_id: str = option(text="where to push it: USER/NAME")
    private: bool = option(False, "make a new repository private")
    revision: str | None = option(None, "branch to push to, made if it is new; else the main one")
    with_code: bool = option(
        False, "push the model's code too, for those who load it without hf_vanilla"
    )


@dataclass(frozen=True, kw_only=True)
class Repository:
    """Where a model is pushed to.

    Attributes:
        repo_id: `USER/NAME`, or a name alone for the user's own.
        private: whether a new repository is private; None: as the account's default.
        revision: branch, made if it is new; None: the main one.
        token: of the user; None: the one of `hf auth login`.
    """

    repo_id: str
    private: bool | None = None
    revision: str | None = None
    token: str | None = None


def push_folder(options: PushOptions) -> str:
    """Push model, tokenizer, generation config and card of a folder; returns the address.

    Raises:
        ValueError: the folder holds no model.
        OSError: the Hub refuses; nothing of the model is there then.
    """
    folder = Path(model_folder(options.model))
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; give one that training wrote")
    model, tokenizer = load_folder(folder)
    card = folder / CARD_FILE
    return push_model(
        model,
        tokenizer,
        ModelCard.load(card)
        if card.is_file()
        else bare_card(folder.resolve().name, model.config.model_type),
        Repository(repo_id=options.repo_id, private=options.private, revision=options.revision),
        with_code=options.with_code,
    )


def push_model(
    model: PreTrainedModel,
    tokenizer: Any,
    card: ModelCard,
    repository: Repository,
    *,
    with_code: bool,
) -> str:
    """Push everything in one commit, so that the repository is never half a model.

    Args:
        model: its weights, config and generation config are pushed.
        tokenizer: tokenizer or image processor of the model; None: it has none.
        card: its example is changed to load the model from the repository.
        repository: made if it is new.
        with_code: whether to push the model's code too.

    Returns:
        The address of the repository.

    Raises:
        OSError: the Hub refuses; the repository is then as it was, or empty if it is new.
    """
    to = {"token": repository.token}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if with_code:
            save_with_code(model, folder, tokenizer)
        else:
            model.save_pretrained(folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
        with _hub_errors(repository.repo_id):
            # a name without an owner means the user's own
            made = create_repo(repository.repo_id, private=repository.private, exist_ok=True, **to)
            if repository.revision is not None:
                create_branch(made.repo_id, branch=repository.revision, exist_ok=True, **to)
            pushed_card(card, made.repo_id, with_code=with_code).save(folder / CARD_FILE)
            # not upload_folder: newer clients divide what it uploads into several commits
            create_commit(
                made.repo_id,
                [
                    CommitOperationAdd(str(file.relative_to(folder)), file)
                    for file in sorted(folder.rglob("*"))
                    if file.is_file()
                ],
                commit_message="Push model, tokenizer and card",
                revision=repository.revision,
                **to,
            )
    return str(made) if repository.revision is None else f"{made}/tree/{repository.revision}"


@contextmanager
def _hub_errors(repo_id: str) -> Iterator[None]:
    """Errors of network, login and server, each of a class of its own, as one `OSError`."""
    try:
        yield
    except Exception as error:
        reasons, cause = [str(error)], error.__cause__
        while cause is not None:  # the client names the file, the server why it refused
            reasons.append(str(cause))
            cause = cause.__cause__
        raise OSError(
            f"cannot push to {repo_id}: {': '.join(reasons)}; is there a network, and are you "
            "logged in (hf auth login)?"
        ) from None
