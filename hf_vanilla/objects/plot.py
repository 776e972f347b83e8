"""Figures of an object detector: boxes, attention of queries, precision over recall."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_vanilla.data.image_models import image_paths
from hf_vanilla.data.images import open_image
from hf_vanilla.options import Options, option, progress_bar
from hf_vanilla.plots.figures import (
    THEMES,
    check_output,
    figure_style,
    new_figure,
    save_figure,
    saved_panels,
    show_image,
)

from .coco_scores import LayerScores, ObjectScores
from .detector import Detector, ObjectAttention, load_detector, object_attention

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = ("boxes", "queries", "encoder", "places")
MOST_PANELS, MOST_PIXELS = 20, 10


@dataclass(frozen=True, kw_only=True)
class PlotObjectsOptions(Options):
    """Draw the objects of an image, or what each object's query or a pixel attends to."""

    model: str = option(text="model folder or Hub id")
    image: str = option(text="image file; for kind places a folder of images")
    kind: str = option(
        "boxes",
        (
            "boxes; queries: cross-attention of each object's query; encoder: attention "
            "from and to each of --pixels; places: centers of each query's boxes over a folder"
        ),
        choices=KINDS,
    )
    threshold: float = option(0.5, "lowest score of an object", at_least=0, at_most=1)
    pixels: list[str] = option([], "X,Y of each pixel for kind encoder, such as 120,80 30,45")
    output: str = option("objects.png", "figure file, .png or .svg")
    overwrite: bool = option(False, "replace an existing figure")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "encoder" and not 0 < len(self.points) <= MOST_PIXELS:
            raise ValueError(f"kind='encoder' needs 1 to {MOST_PIXELS} pixels: give --pixels X,Y")
        if self.pixels and self.kind != "encoder":
            raise ValueError(f"kind={self.kind!r} has no pixels: add --kind encoder")

    @property
    def points(self) -> list[tuple[int, int]]:
        """Column and row of each pixel.

        Raises:
            ValueError: a text is no pair of numbers.
        """
        for text in self.pixels:
            if not re.fullmatch("[0-9]{1,9},[0-9]{1,9}", text):
                raise ValueError(f"pixels={text!r}: give column and row, such as 120,80")
        pairs = (text.split(",") for text in self.pixels)
        return [(int(column), int(row)) for column, row in pairs]


def plot_objects(options: PlotObjectsOptions) -> Path:
    """Draw one figure and save it; returns the file.

    Raises:
        ValueError: the model is another, the pixel lies outside, or the image is unreadable.
        OSError: the figure cannot be written, or it exists and `overwrite` is off.
    """
    path = check_output(options.output, overwrite=options.overwrite)
    detector = load_detector(options.model, device="cpu")
    if options.kind == "places":
        save_places(detector, options.image, path)
        return path
    image, names = open_image(options.image), detector.label_names
    attention = object_attention(detector, image)
    if options.kind == "encoder":
        save_encoder_attention(image, attention, options.points, path)
    elif options.kind == "queries":
        save_query_attention(image, attention, names, path, threshold=options.threshold)
    else:
        found = attention.found.above(options.threshold)
        parts = zip(found.labels, found.scores, found.boxes.tolist(), strict=True)
        with saved_panels(path, 1, inches=4.0) as (panel,):
            show_image(panel, image)
            for label, score, box in parts:
                _draw_box(panel, box, f"{names[label]} {score:.2f}", int(label))
    return path


def save_query_attention(
    image: "Image",
    attention: ObjectAttention,
    label_names: Sequence[str],
    path: Path,
    *,
    threshold: float = 0.5,
) -> None:
    """Save, for each object, the cross-attention of the query that found it on the image.

    Raises:
        ValueError: no object has such a score.
    """
    found = attention.found.above(threshold)
    if not len(found):
        raise ValueError(f"no object has a score of {threshold} or more: give a lower --threshold")
    count = min(len(found), MOST_PANELS)
    title = "cross-attention of the last decoder layer, mean over heads"
    with saved_panels(path, count, min(count, 5), inches=2.0, title=title) as panels:
        for index, panel in enumerate(panels):
            label, query = int(found.labels[index]), found.queries[index]
            show_image(panel, image, attention.cross[query])
            _draw_box(panel, found.boxes[index].tolist(), "", label)
            text = f"query {query}: {label_names[label]} {found.scores[index]:.2f}"
            panel.set_title(text, fontsize=8)


def save_encoder_attention(
    image: "Image", attention: ObjectAttention, pixels: Sequence[tuple[int, int]], path: Path
) -> None:
    """Save what pixels' positions of the feature map attend to, and what attends to them.

    Args:
        image: RGB.
        attention: of that image.
        pixels: x and y of each.
        path: figure file.

    Raises:
        ValueError: a pixel lies outside the image.
    """
    rows, columns = attention.encoder.shape[:2]
    with saved_panels(path, 2 * len(pixels), 2, inches=3.0) as panels:
        for (x, y), row_of_panels in zip(pixels, panels.reshape(-1, 2), strict=True):
            if not (0 <= x < image.width and 0 <= y < image.height):
                raise ValueError(f"x={x}, y={y} lies outside of {image.width} x {image.height}")
            row, column = y * rows // image.height, x * columns // image.width
            weights = attention.encoder[row, column], attention.encoder[:, :, row, column]
            for panel, shown, side in zip(row_of_panels, weights, ("from", "to"), strict=True):
                show_image(panel, image, shown)
                panel.plot([x + 0.5], [y + 0.5], marker="+", color="white", markersize=12)
                panel.set_title(f"attention {side} {x},{y}")


def save_places(detector: Detector, folder: str, path: Path) -> None:
    """Save the centers of each query's boxes over a folder of images, a panel for each query.

    Raises:
        ValueError: the folder holds no image.
    """
    of_images = []  # `(Q, 2)` x and y in shares of each image
    for file in progress_bar(image_paths([folder]), text="Detecting", unit="images"):
        image = open_image(file)
        entry = detector.detect([image])[0]
        inside = (entry.boxes[:, :2] + entry.boxes[:, 2:]) / 2 / (image.width, image.height)
        of_images.append(inside[np.argsort(entry.queries)])
    if not of_images:
        raise ValueError(f"{folder} holds no image: give a folder of images")
    shown = np.stack(of_images, axis=1)[:MOST_PANELS].astype(np.float32)
    with saved_panels(path, len(shown), min(len(shown), 5), inches=1.4) as panels:
        for query, (panel, centers) in enumerate(zip(panels, shown, strict=True)):
            panel.set_axis_on()
            panel.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
            panel.plot(*centers.T, ".", markersize=2)
            panel.set_title(f"query {query}", fontsize=7)


@figure_style()
def save_precision(scores: ObjectScores, path: Path) -> None:
    """Save precision at IoU 0.5 over recall, mean over classes."""
    figure = new_figure((4.5, 3.5))
    axes = figure.subplots()
    axes.plot(np.linspace(0, 1, len(scores.precision)), scores.precision)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision (IoU 0.5)")
    axes.set_title(f"AP50 {scores.figures['AP50']:.3f}, AP {scores.figures['AP']:.3f}")
    axes.grid(visible=True)
    save_figure(figure, path)


@figure_style()
def save_layers(scores: Sequence[LayerScores], path: Path) -> None:
    """Save AP and AP50 after each decoder layer, with and without suppression of overlaps."""
    figure, numbers = new_figure((4.5, 3.5)), range(1, len(scores) + 1)
    axes = figure.subplots()
    for index, name in enumerate(("AP50", "AP")):
        style: dict[str, Any] = {"color": f"C{index}", "marker": "o", "markersize": 4}
        plain = [getattr(layer, name.lower()) for layer in scores]
        suppressed = [getattr(layer, f"suppressed_{name.lower()}") for layer in scores]
        axes.plot(numbers, plain, label=name, **style)
        style["markerfacecolor"] = "none"
        axes.plot(numbers, suppressed, ":", label=f"{name}, without overlaps", **style)
    axes.set(xticks=numbers, ylim=(0, 1.02), xlabel="decoder layer", ylabel="average precision")
    axes.legend(loc="best", fontsize=8, handlelength=3)
    axes.grid(visible=True)
    save_figure(figure, path)


def _draw_box(panel: Any, box: Sequence[float], text: str, label: int) -> None:
    from matplotlib.patches import Rectangle

    left, top, right, bottom = box
    colour = THEMES["dark"].lines[label % len(THEMES["dark"].lines)]
    panel.add_patch(
        Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, lw=1.8)
    )
    if text:
        panel.text(
            *(left, top), text, fontsize=8, va="bottom", color="black", bbox={"fc": colour, "lw": 0}
        )
