"""A trained object detector: images to boxes with labels and scores, its command, its attention.

Shapes: B batch, Q queries, K classes, S = h * w positions of the feature map.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers.image_transforms import center_to_corners_format

from hf_vanilla.data.image_models import (
    STDIN,
    FileResult,
    ImageFilesOptions,
    ImageRequest,
    eager_attention,
    image_paths,
    load_image_model,
    output_and_results,
    read_image_request,
)
from hf_vanilla.data.images import as_rgb, open_image
from hf_vanilla.options import install_hint, option

from .detection import ObjectArrays, resized_size
from .sources import read_coco

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

    from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

logger = logging.getLogger(__name__)

FORMATS = ("jsonl", "coco")
# for readers with any colour vision (the palette of Okabe and Ito)
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
SMALLEST_SIDE = 256  # smaller images are enlarged, so that labels can be read
LARGEST_SIDE = 4096  # but not beyond this: a thin image would fill the memory
LETTER_SHARE, SMALLEST_LETTERS = 1 / 50, 12  # size by that of the image, and at least, in pixels
SYSTEM_FONTS = ("DejaVuSans.ttf", "Arial.ttf", "arial.ttf")


@dataclass(frozen=True)
class Detections(ObjectArrays):
    """The detected objects of one image, the surest first.

    Attributes:
        scores: `(m,)` float64 in [0, 1].
        queries: `(m,)` int64, the query of each.
    """

    scores: np.ndarray
    queries: np.ndarray

    def above(self, threshold: float) -> "Detections":
        """Those with a score of at least `threshold`."""
        return self.where(self.scores >= threshold)

    def entries(
        self, label_names: Sequence[str], boxes: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """Label, score and box of each, for JSON; `boxes` stand for their own ones."""
        corners = (self.boxes if boxes is None else boxes).tolist()
        parts = zip(self.labels, self.scores.tolist(), corners, strict=True)
        return [{"label": label_names[i], "score": score, "box": box} for i, score, box in parts]


def detected_objects(
    logits: Tensor, boxes: Tensor, sizes: Sequence[tuple[int, int]] | np.ndarray
) -> list[Detections]:
    """The objects of each image: for every query its most probable class, as the authors score.

    Args:
        logits: `(B, Q, K + 1)`; the last class is "no object".
        boxes: `(B, Q, 4)` center form, in shares of the image.
        sizes: height and width of each image in pixels.
    """
    scores, labels = logits.detach().float().softmax(-1)[..., :-1].max(-1)  # (B, Q)
    order = scores.argsort(dim=-1, descending=True, stable=True).cpu()
    corners = center_to_corners_format(boxes.detach().double()).cpu()
    found = []
    for image, (height, width) in enumerate(np.asarray(sizes).tolist()):
        queries = order[image]
        whole = torch.tensor([width, height, width, height], dtype=torch.float64)
        found.append(
            Detections(
                labels[image].cpu()[queries].numpy(),
                (corners[image, queries] * whole).numpy(),
                scores[image].cpu()[queries].double().numpy(),
                queries.numpy(),
            )
        )
    return found


@dataclass(frozen=True)
class Detector:
    """A model and its image processor.

    Attributes:
        model: in evaluation mode.
        processor: makes `pixel_values` and `pixel_mask` of images, as the model was trained.
    """

    model: "VanillaForObjectDetection"
    processor: Any

    @property
    def label_names(self) -> tuple[str, ...]:
        """The model's classes."""
        config = self.model.config
        return tuple(config.id2label[index] for index in range(config.num_labels))

    @torch.inference_mode()
    def detect(self, images: Iterable["Image"]) -> list[Detections]:
        """All queries' objects of each image, boxes in its pixels, turned by its EXIF data.

        Images of one size after resizing go through the model together. Padding would change the
        feature map near the border of an image, so the result would depend on the others.
        """
        pixels: list[Tensor] = []
        sizes: list[tuple[int, int]] = []
        for image in map(as_rgb, images):  # each is resized before the next one is opened
            pixels.append(self.pixels(image))
            sizes.append((image.height, image.width))
        found: dict[int, Detections] = {}
        for shape in dict.fromkeys(values.shape for values in pixels):
            indices = [index for index, values in enumerate(pixels) if values.shape == shape]
            batch = torch.cat([pixels[index] for index in indices])  # (B, 3, H, W)
            outputs = self.model(batch.to(self.model.device))
            of_group = detected_objects(
                outputs.logits, outputs.pred_boxes, [sizes[index] for index in indices]
            )
            found |= dict(zip(indices, of_group, strict=True))
        return [found[index] for index in range(len(pixels))]

    def pixels(self, image: "Image") -> Tensor:
        """`(1, 3, H, W)`, as the processor makes them; no side of a thin image becomes 0."""
        size = dict(self.processor.size)
        if {"shortest_edge", "longest_edge"} <= set(size):
            edges = size["shortest_edge"], size["longest_edge"]
            height, width = resized_size((image.height, image.width), *edges)
            size = {"height": height, "width": width}
        # without the mask of `pad_size`, padding would be read as part of the image
        pixels = self.processor(image, size=size, do_pad=False, return_tensors="pt")
        return pixels["pixel_values"]


def load_detector(name: str, *, device: str | None = None) -> Detector:
    """The detector of a model folder or Hub id.

    Args:
        name: folder or Hub id.
        device: such as `"cpu"`; None: a GPU if there is one.

    Raises:
        ValueError: it is another type of model, or has no image processor.
        OSError: nothing is found under that name.
    """
    model, processor = load_image_model(
        name,
        "object_detection",
        remedy="give a detector of this package; hf-vanilla convert makes one of a DETR",
        device=device,
    )
    return Detector(model, processor)


# --- the command ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DetectOptions(ImageFilesOptions):
    """Detect objects in the images of PATHS: files, folders, or - for paths from stdin."""

    format: str = option(
        "jsonl", f"one of {', '.join(FORMATS)}; coco: one JSON list of results", choices=FORMATS
    )
    threshold: float | None = option(
        None, "lowest score; default: 0.5, for coco 0, as AP needs it", at_least=0, at_most=1
    )
    annotations: str | None = option(
        None, "COCO file whose image ids and category ids the format coco writes"
    )
    draw: str | None = option(None, "folder for the images with their boxes")
    batch_size: int = option(8, "images at a time", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.annotations is not None and self.format != "coco":
            raise ValueError("annotations: only the format coco has ids; add --format coco")


def image_id(ids: Mapping[str, Any], path: str) -> Any:
    """The id of an image.

    Args:
        ids: by file name, whose folders may be fewer than a path's.
        path: of the image.

    Raises:
        ValueError: no file name belongs to it.
    """
    parts = Path(path).parts
    for name in (path, *("/".join(parts[first:]) for first in range(len(parts)))):
        if name in ids:
            return ids[name]
    raise ValueError(f"{path} is not among the {len(ids)} annotated images: leave it out")


read_detection = partial(read_image_request, DetectOptions)


def detect_files(request: ImageRequest) -> None:
    """Write the objects of each image, in the order of the paths; folders by sorted names.

    Raises:
        ValueError: the model is another, or an image is unreadable; the others have their results
            then, unless the options say to stop.
        OSError: the output cannot be written, or a drawing would replace its image.
    """
    options = request.options
    detector = load_detector(options.model, device=options.device)
    names = detector.label_names
    id_of, categories = coco_ids(options.annotations, names)
    default = 0.0 if options.format == "coco" else 0.5
    lowest = default if options.threshold is None else options.threshold
    if options.annotations is not None and STDIN not in request.paths:
        for path in image_paths(request.paths):
            id_of(path)  # refuses one without an id
    with output_and_results(request, detector.detect) as (file, reported):
        passing: Iterator[FileResult[Detections]] = (
            result if result.result is None else replace(result, result=result.result.above(lowest))
            for result in reported
        )
        if options.draw is not None:
            drawn = 0.5 if options.threshold is None else options.threshold
            passing = _drawing(passing, Path(options.draw), names, drawn)
        if options.format == "coco":
            entries: list[dict[str, Any]] = []
            is_known = np.asarray([category is not None for category in categories])
            for result in passing:
                if result.result is not None:
                    found = result.result.where(is_known[result.result.labels])
                    entries += coco_results([found], categories, [id_of(result.name)])
            json.dump(entries, file)
            file.write("\n")
        else:
            for result in passing:
                file.write(line_of(result, names) + "\n")


def coco_ids(
    annotations: str | None, label_names: Sequence[str]
) -> tuple[Callable[[str], Any], Sequence[Any]]:
    """The ids that results are written with; warns of labels that are no category of the file.

    Returns:
        From an image's path to its id; and the id of each label, None where it is no category.
        Without a file these are the path and the label's number.

    Raises:
        ValueError: no label of the model is a category of the file.
    """
    if annotations is None:
        return str, range(len(label_names))
    truth = read_coco(Path(annotations))
    of_name = dict(zip(truth.label_names, truth.category_ids, strict=True))
    missing = [name for name in label_names if name not in of_name]
    if len(missing) == len(label_names):
        raise ValueError(f"{annotations} has no category {missing[0]!r}, a label of the model")
    if missing:
        logger.warning(
            "%s has no category %s, labels of the model: such objects are left out",
            *(annotations, ", ".join(map(repr, dict.fromkeys(missing)))),
        )
    images = dict(zip(truth.names, truth.image_ids, strict=True))
    return partial(image_id, images), [of_name.get(name) for name in label_names]


def coco_results(
    found: Sequence[Detections], category_ids: Sequence[int], image_ids: Sequence[Any]
) -> list[dict[str, Any]]:
    """Objects in the form of COCO's result files: left, top, width, height in pixels."""
    results = []
    for number, entry in zip(image_ids, found, strict=True):
        for label, score, box in zip(entry.labels, entry.scores, entry.boxes, strict=True):
            left, top, right, bottom = box.tolist()
            results.append(
                {
                    "image_id": number,
                    "category_id": category_ids[label],
                    "bbox": [left, top, right - left, bottom - top],
                    "score": float(score),
                }
            )
    return results


def line_of(result: FileResult[Detections], label_names: Sequence[str]) -> str:
    """One result as a line of JSON, without its end; boxes are left, top, right, bottom."""
    if result.result is None:
        return json.dumps({"path": result.name, "objects": [], "error": result.error})
    objects = result.result.entries(label_names)
    for entry in objects:
        entry["box"] = [round(value, 3) for value in entry["box"]]
    return json.dumps({"path": result.name, "objects": objects})


def _drawing(
    results: Iterable[FileResult[Detections]],
    folder: Path,
    label_names: Sequence[str],
    threshold: float,
) -> Iterator[FileResult[Detections]]:
    """Draw each readable image into a folder while results pass, under its name.

    Raises:
        FileExistsError: it is the folder of the image, and has a file of the drawing's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    used: set[str] = set()
    for number, result in enumerate(results):
        if result.result is not None:
            name = Path(result.name).stem
            while name in used:  # of another folder, or with another suffix
                name = f"{name}-{number}"
            used.add(name)
            file = folder / f"{name}.png"
            if file.exists() and folder.samefile(Path(result.name).parent):
                raise FileExistsError(
                    f"draw={str(folder)!r} is the folder of {result.name}, and the drawing would "
                    f"replace {file.name} there: give another folder"
                )
            shown = result.result.above(threshold)
            picture = drawn_objects(open_image(result.name), shown, label_names)
            picture.save(file)
        yield result


# --- drawing -------------------------------------------------------------------------------------


def drawn_objects(image: "Image", found: Detections, label_names: Sequence[str]) -> "Image":
    """A copy of an RGB image with boxes, labels and scores; small images are enlarged.

    Letters and lines grow with the image.
    """
    from PIL import Image, ImageDraw

    factor = max(1, min(-(-SMALLEST_SIDE // min(image.size)), LARGEST_SIDE // max(image.size)))
    size = (image.width * factor, image.height * factor)
    picture = image.resize(size, Image.Resampling.NEAREST) if factor > 1 else image.copy()
    pen = ImageDraw.Draw(picture)
    letters = max(SMALLEST_LETTERS, round(math.prod(size) ** 0.5 * LETTER_SHARE))
    font = _label_font(letters, is_ascii="".join(label_names).isascii())
    entries = zip(found.labels, found.scores, found.boxes, strict=True)
    for label, score, box in reversed([*entries]):  # the surest lies on the others
        colour = COLOURS[int(label) % len(COLOURS)]
        left, top, right, bottom = (box * factor).tolist()
        if right < left or bottom < top:
            continue
        pen.rectangle((left, top, right, bottom), outline=colour, width=letters // 6)
        text = f"{label_names[label]} {score:.2f}"
        wide, high = round(font.getlength(text)) + letters // 2, sum(font.getmetrics())
        x, y = round(max(0, min(left, size[0] - wide))), round(max(0, top - high))
        pen.rectangle((x, y, x + wide, y + high), fill=colour)
        pen.text((x + letters // 4, y), text, fill="black", font=font)
    return picture


@cache
def _label_font(size: int, *, is_ascii: bool) -> "FreeTypeFont":
    """The font of matplotlib or of the system; Pillow's own has no letters beyond ASCII."""
    from PIL import ImageFont

    names = list(SYSTEM_FONTS)
    if (found := find_spec("matplotlib")) and found.origin:
        data = Path(found.origin).parent / "mpl-data"
        names.insert(0, str(data / "fonts" / "ttf" / "DejaVuSans.ttf"))
    for name in names:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    if not is_ascii:
        logger.warning(
            "drawings show letters beyond ASCII as boxes, as no font has them; %s brings one",
            install_hint("plot"),
        )
    return cast("FreeTypeFont", ImageFont.load_default(size))


# --- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectAttention:
    """Attention weights of the last layers for one image.

    Attributes:
        found: the objects of the image, the surest first, with their queries.
        cross: `(Q, h, w)` mean over heads of the last decoder layer: what each query gives to each
            position; sums to 1 for each query.
        encoder: `(h, w, h, w)` mean over heads of the last encoder layer: what each position (the
            first pair) gives to each position (the second pair); sums to 1 over the second, and
            need not over the first.
    """

    found: Detections
    cross: Tensor
    encoder: Tensor


@torch.inference_mode()
def object_attention(detector: Detector, image: "Image") -> ObjectAttention:
    """Attention of the last encoder and decoder layer for one RGB image."""
    model = detector.model
    with eager_attention(model):
        outputs = model(detector.pixels(image).to(model.device), output_attentions=True)
    size = tuple(outputs.feature_size)
    sizes = [(image.height, image.width)]
    encoder = outputs.encoder_attentions[-1][0].float().mean(0).cpu()  # (S, S)
    return ObjectAttention(
        detected_objects(outputs.logits, outputs.pred_boxes, sizes)[0],
        outputs.cross_attentions[-1][0].float().mean(0).cpu().unflatten(-1, size),
        encoder.unflatten(0, size).unflatten(-1, size),
    )
