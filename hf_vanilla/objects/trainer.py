"""Images with boxes for transformers' Trainer, scores, and a saved detector for other classes."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hf_vanilla.data.image_models import BILINEAR, check_processor, label_fields
from hf_vanilla.loading import load_model, load_saved
from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection

from .coco_scores import score_detections
from .detection import BoxAugmentation, DetectionImages, augmented, detection_row
from .detector import detected_objects


class DetectionRows(Dataset):
    """Images with boxes as rows for transformers' Trainer and `DetectionCollator`.

    Args:
        images: to read.
        processor: image processor of the model, read for sizes, mean and standard deviation.
        changes: how images are changed at random; None: not at all.

    Raises:
        ValueError: the processor makes other pixels than training would.
    """

    def __init__(
        self, images: DetectionImages, processor: Any, changes: BoxAugmentation | None = None
    ) -> None:
        check_processor(processor, resample=BILINEAR)
        self.images = images
        self.edges = processor_edges(processor)
        self.processor = processor
        self.changes = changes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """`pixel_values` `(3, H, W)`, `labels` `(m,)` and `boxes` `(m, 4)` of one image."""
        changes, generator = self.changes or BoxAugmentation(), torch.Generator()
        if self.changes is not None:
            generator.manual_seed(int(torch.randint(2**62, ())))
        image, objects = augmented(*self.images.read(row), self.edges, changes, generator)
        return detection_row(image, objects, self.processor)


def with_class_head(
    name: str, label_names: Sequence[str], config: VanillaDetrConfig | None = None
) -> VanillaForObjectDetection:
    """A saved detector with a class head for other names; equal names keep their head.

    Queries, boxes and all other weights stay.

    Args:
        name: folder or Hub id.
        label_names: the classes.
        config: of the saved detector with another dropout or loss; None: as it was saved.
    """
    saved = load_saved(VanillaDetrConfig, name)
    config = copy.deepcopy(config or saved)
    config.update(label_fields(label_names))
    model = load_model(
        VanillaForObjectDetection,
        name,
        may_differ=("class_labels_classifier.",),
        config=config,
        dtype="float32",
    )
    if saved.id2label != config.id2label:
        head = model.class_labels_classifier  # perhaps as many classes, but others
        torch.nn.init.xavier_uniform_(head.weight)
        torch.nn.init.zeros_(head.bias)
    return model


def ap_metrics(images: DetectionImages) -> Callable[[Any], dict[str, float]]:
    """COCO's figures for Trainer's `compute_metrics`, over the images in their order."""

    def compute(predictions: Any) -> dict[str, float]:
        # with labels, the losses come before them
        if isinstance(predictions.predictions, list):
            raise ValueError("eval_do_concat_batches=False: ap_metrics needs True, the default")
        logits, boxes = (torch.as_tensor(part) for part in predictions.predictions[-2:])
        if len(logits) != len(images):
            raise ValueError(
                f"predictions of {len(logits)} images, but ap_metrics got {len(images)}: give it "
                "those of eval_dataset"
            )
        scores = score_detections(detected_objects(logits, boxes, images.sizes), images)
        return {"ap": scores.figures["AP"], "ap50": scores.figures["AP50"]}

    return compute


def processor_edges(processor: Any) -> tuple[int, int]:
    """Shortest and longest edge that an image processor resizes to.

    Raises:
        ValueError: it resizes otherwise.
    """
    size = dict(processor.size)
    if "shortest_edge" not in size or "longest_edge" not in size:
        raise ValueError(f"the image processor resizes to {size}: set shortest_edge, longest_edge")
    return size["shortest_edge"], size["longest_edge"]
