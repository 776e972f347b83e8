"""Score an object detector on annotated images, from the command line."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hf_vanilla.data.images import BUILT_IN_DIGITS
from hf_vanilla.files import check_output_file, write_text
from hf_vanilla.options import Options, option
from hf_vanilla.plots.figures import check_output

from .coco_scores import ObjectScores, coco_classes, score_detector, score_layers
from .detector import load_detector
from .digit_scenes import DIGIT_SCENES, VALIDATION_SEED, digit_scenes
from .plot import save_layers, save_precision
from .report import check_files
from .sources import load_detection_images

logger = logging.getLogger(__name__)

DEFAULT_SPLIT = "validation"


@dataclass(frozen=True, kw_only=True)
class EvaluateObjectsOptions(Options):
    """Score an object detector: COCO's twelve figures, AP of each class, duplicates, counts."""

    model: str = option(text="model folder or Hub id")
    dataset: str = option(
        text=(
            "COCO JSON file, folder with metadata.jsonl, YOLO folder, Hub id, or "
            "digit_scenes (300 scenes of the second half of the built-in digits)"
        )
    )
    images: str | None = option(None, "folder of a COCO file's images; default: its own")
    split: str = option(DEFAULT_SPLIT, "split of a folder or dataset")
    figures: str | None = option(None, "file for the figures as JSON")
    curve: str | None = option(None, "figure file of precision over recall, .png or .svg")
    layers: str | None = option(
        None,
        "figure file of AP after each decoder layer, with and without suppression of overlapping "
        "objects, .png or .svg",
    )
    batch_size: int = option(8, "images at a time", at_least=1)
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
    overwrite: bool = option(False, "replace existing files")

    def __post_init__(self) -> None:
        super().__post_init__()
        files = [file for file in (self.curve, self.layers, self.figures) if file is not None]
        if len({*files}) < len(files):
            raise ValueError(
                f"files={', '.join(files)}: give curve, layers and figures different ones"
            )
        if self.dataset == DIGIT_SCENES and (self.images or self.split != DEFAULT_SPLIT):
            raise ValueError(f"images and split are for files and folders, not {DIGIT_SCENES}")


def evaluate_objects(options: EvaluateObjectsOptions) -> ObjectScores:
    """Detect objects in all images and compare with their annotations.

    Raises:
        ValueError: a class of the images is unknown to the model, or there is no object.
        OSError: nothing is found under a name, or a file exists and `overwrite` is off.
        ImportError: faster-coco-eval is not installed.
    """
    coco_classes()  # before all images are read
    curve, layers = (
        None if file is None else check_output(file, overwrite=options.overwrite)
        for file in (options.curve, options.layers)
    )
    if options.figures is not None:
        check_output_file(options.figures, overwrite=options.overwrite)
    detector = load_detector(options.model, device=options.device)
    if options.dataset == DIGIT_SCENES:
        scenes = digit_scenes(BUILT_IN_DIGITS, "second_half", seed=VALIDATION_SEED)
        images = scenes.images(300)
    else:
        images = load_detection_images(options.dataset, images=options.images, split=options.split)
    images = images.relabelled(detector.label_names)
    check_files(images)
    scores = score_detector(detector, images, batch_size=options.batch_size)
    if layers is not None:
        by_layer = score_layers(detector, images, batch_size=options.batch_size)
        scores = replace(scores, by_layer=by_layer)
        save_layers(by_layer, layers)
        logger.info("wrote %s", layers)
    if curve is not None:
        save_precision(scores, curve)
        logger.info("wrote %s", curve)
    if options.figures is not None:
        entry = {"protocol": scores.protocol, **scores.figures, "duplicates": scores.duplicates}
        by_class = {name: {"AP": ap, "AP50": ap50} for name, ap, ap50 in scores.by_class}
        entry |= {"count_error": scores.count_error, "by_class": by_class}
        if scores.by_layer:
            entry["by_layer"] = [asdict(layer) for layer in scores.by_layer]
        write_text(Path(options.figures), json.dumps(entry, indent=1) + "\n")
    return scores
