"""Folders of small images, whole and damaged, for tests."""

from pathlib import Path

import numpy as np
from PIL import Image


def coloured(path: Path, color, *, size=(12, 10)):
    """An image of one colour, with a little noise so that it is none of a kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(len(str(path)))
    values = np.asarray(color) + random.integers(-9, 10, (size[1], size[0], 3))
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path)


def colour_folder(folder: Path, *, count=6, names=("blue", "red")):
    """`count` images of each class: `blue` and `red` pictures of these colours."""
    colors = {"blue": (20, 20, 230), "red": (230, 20, 20), "green": (20, 230, 20)}
    for name in names:
        for number in range(count):
            coloured(folder / name / f"{number}.png", colors[name], size=(12, 10 + number))
    return folder


def damaged(folder: Path):
    """One file of each kind that is no image, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole.png"
    coloured(whole, (50, 60, 70), size=(40, 40))
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpg").write_text("no image")
    (folder / "cut.png").write_bytes(whole.read_bytes()[:200])
    whole.unlink()
    return sorted(folder.iterdir())
