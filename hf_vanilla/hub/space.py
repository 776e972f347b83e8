"""The app as a Space of the Hub: a folder to be pushed as it is."""

import importlib.metadata
import shutil
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import SpaceCardData
from packaging.requirements import Requirement

from hf_vanilla.families import DEFAULT_TASK
from hf_vanilla.files import whole_folder

from .model_folder import load_folder

PACKAGE = Path(__file__).resolve().parents[1]
MODEL_FOLDER = "model"
PORT = 7860  # the Hub's proxy looks for it there

APP = '''\
"""The app of hf_vanilla as a Space."""

from hf_vanilla.serve import AppOptions, serve

if __name__ == "__main__":
    serve(
        AppOptions(
            model={model!r},
            {options}fixed_model=True,
            host="0.0.0.0",
            port={port},
        )
    )
'''

README = """\
---
{header}
---

# {title}

{text}
Made with hf_vanilla, the Transformer of ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762).
"""


@dataclass(frozen=True)
class SpacePage:
    """What a Space says about the page of a task.

    Attributes:
        title: of the card.
        text: below it.
        options: of the app that the Space sets, by their name in `SpaceOptions`.
    """

    title: str
    text: str
    options: tuple[str, ...] = ()


TRACKS = SpacePage(
    "See a Transformer forecast where people walk",
    "Draw a path or step through a scene of generated walkers, and see the predicted futures by "
    "their probability.",
)
PAGES = {
    "translation": SpacePage(
        "See a Transformer translate",
        "Type a sentence, read its best translations, and see where each attention head of the "
        "model looks.",
        ("sentence", "max_tokens"),
    ),
    "image_classification": SpacePage(
        "See a Vision Transformer classify",
        "Drop or draw an image, read its most probable labels, and see which patches each "
        "attention head looks at.",
    ),
    "object_detection": SpacePage(
        "See a Transformer find objects",
        "Drop an image, and see the objects that the model finds, and where each of its queries "
        "looks.",
    ),
    "trajectories": TRACKS,
    "joint_trajectories": TRACKS,
    "scene_trajectories": TRACKS,
}


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """What a Space shows.

    Attributes:
        folder: new or empty.
        model: folder, which is copied, or Hub id, which is loaded when the Space starts.
        sentence: in the box at the start; None: nothing.
        max_tokens: source tokens a sentence may have.
        task: of the model.
    """

    folder: str
    model: str
    sentence: str | None
    max_tokens: int
    task: str = DEFAULT_TASK


def write_space(options: SpaceOptions) -> Path:
    """Write app, card header, requirements, this package and a local model; returns the folder.

    Raises:
        ValueError: the model folder holds no model, or its task has no page.
        OSError: the folder is not empty, or no model is found under that name.
    """
    is_local = Path(options.model).is_dir()
    if options.task not in PAGES:
        raise ValueError(
            f"write_space={options.folder!r}: {options.model} is a model of {options.task}, which "
            f"has no page; there are {', '.join(PAGES)}"
        )
    names = PAGES[options.task].options
    of_page = [f"{name}={getattr(options, name)!r},\n            " for name in names]
    app = APP.format(
        model=MODEL_FOLDER if is_local else options.model,
        options="".join(of_page),
        port=PORT,
    )
    texts = {
        "app.py": app,
        "requirements.txt": "".join(f"{line}\n" for line in requirements()),
        "README.md": card(options.task, None if is_local else options.model),
    }
    with whole_folder(options.folder) as folder:
        if is_local:
            model, processor = load_folder(Path(options.model))  # fails here if it is damaged
            model.save_pretrained(folder / MODEL_FOLDER)
            if processor is not None:
                processor.save_pretrained(folder / MODEL_FOLDER)
        code = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=code)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return Path(options.folder)


def requirements() -> list[str]:
    """What this package and its app need, as lines of a requirements file: with the extra `text`.

    Gradio itself is left out: the Hub installs the version that the card header names.
    """
    found = [Requirement(line) for line in importlib.metadata.requires("hf-vanilla") or []]
    return sorted(
        f"{needed.name}{needed.specifier}"
        for needed in found
        if needed.marker is None or needed.marker.evaluate({"extra": "text"})
    )


def card(task: str, hub_id: str | None) -> str:
    """The Space's README: the header that the Hub reads, and two sentences.

    Args:
        task: a name of `PAGES`.
        hub_id: the model it loads from the Hub; None: it carries its own.
    """
    title = PAGES[task].title
    header = SpaceCardData(
        title=title,
        sdk="gradio",
        sdk_version=importlib.metadata.version("gradio"),
        app_file="app.py",
        python_version="3.12",
        license="apache-2.0",
        models=None if hub_id is None else [hub_id],
        emoji="🔎",
        colorFrom="blue",
        colorTo="gray",
    )
    return README.format(header=header.to_yaml(), title=title, text=PAGES[task].text)
