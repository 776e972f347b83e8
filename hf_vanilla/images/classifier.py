"""A trained image classifier: images to labels with probabilities, its command, its attention.

Shapes: B batch, C labels, L layers, H heads, P patches in R rows and K columns.
"""

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_vanilla.data.image_models import (
    ImageFilesOptions,
    ImageRequest,
    eager_attention,
    load_image_model,
    output_and_results,
    read_image_request,
)
from hf_vanilla.data.images import as_rgb
from hf_vanilla.models.configuration_vanilla_vit import PROBLEM_TYPES
from hf_vanilla.options import option

if TYPE_CHECKING:
    from PIL.Image import Image

    from hf_vanilla.models.modeling_vanilla_vit import VanillaForImageClassification

FORMATS = ("csv", "jsonl")
_, MULTI_LABEL, REGRESSION = PROBLEM_TYPES


@dataclass(frozen=True)
class Guess:
    """A label and its probability, 0 to 1."""

    label: str
    probability: float


@dataclass(frozen=True)
class Classifier:
    """A model and its image processor.

    Attributes:
        model: in evaluation mode.
        processor: makes `pixel_values` of images, as the model was trained.

    Examples:
        >>> from PIL import Image
        >>> from hf_vanilla import VanillaForImageClassification, VanillaVitConfig
        >>> from hf_vanilla.images.batches import image_processor
        >>> config = VanillaVitConfig(image_size=8, patch_size=4, d_model=16, encoder_layers=1,
        ...     encoder_attention_heads=2, encoder_ffn_dim=32, num_labels=3)
        >>> processor = image_processor((8, 8), [0.5] * 3, [0.5] * 3)
        >>> classifier = Classifier(VanillaForImageClassification(config).eval(), processor)
        >>> len(classifier.guesses([Image.new("RGB", (9, 7))], top_k=2)[0])
        2
    """

    model: "VanillaForImageClassification"
    processor: Any

    @torch.inference_mode()
    def probabilities(self, images: Iterable["Image"]) -> Tensor:
        """`(B, C)` float32 probabilities of images; they sum to 1, unless `is_multi_label`.

        Raises:
            ValueError: the processor makes images of several sizes.
        """
        opened = map(as_rgb, images)
        pixels = [self.processor(image, return_tensors="pt")["pixel_values"] for image in opened]
        if not pixels:
            return torch.empty(0, self.model.config.num_labels)
        if len(sizes := {tuple(one.shape[2:]) for one in pixels}) > 1:
            raise ValueError(
                f"the image processor makes images of {sorted(sizes)} pixels: set do_resize to "
                "true in its preprocessor_config.json, or give images of one size"
            )
        logits = self.model(torch.cat(pixels).to(self.model.device)).logits.float()
        return (logits.sigmoid() if self.is_multi_label else logits.softmax(-1)).cpu()

    @property
    def is_multi_label(self) -> bool:
        """Whether each label has a probability of its own, as in transformers' pipeline."""
        config = self.model.config
        return config.problem_type == MULTI_LABEL or config.num_labels == 1

    def guesses(self, images: Iterable["Image"], *, top_k: int = 5) -> list[tuple[Guess, ...]]:
        """The `top_k` most probable labels of each image, or all of a model with fewer."""
        best = self.probabilities(images).topk(min(top_k, self.model.config.num_labels))
        names = self.model.config.id2label
        return [
            tuple(Guess(names[index], value) for index, value in zip(indices, values, strict=True))
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def seen(self, image: "Image") -> "Image":
        """An RGB image after resizing and cropping, as the model sees it."""
        from PIL import Image

        plain = {"do_rescale": False, "do_normalize": False}
        pixels = self.processor(image, **plain, return_tensors="pt")["pixel_values"][0]  # (3, H, W)
        return Image.fromarray(pixels.byte().permute(1, 2, 0).numpy())  # (H, W, 3)


def load_classifier(name: str, *, device: str | None = None) -> Classifier:
    """The classifier of a model folder or Hub id, on a GPU if there is one.

    Args:
        name: folder or Hub id.
        device: such as `"cpu"`; None: a GPU if there is one.

    Raises:
        ValueError: it is another type of model, a regression, or has no image processor.
        OSError: nothing is found under that name.
    """
    model, processor = load_image_model(
        name,
        "image_classification",
        remedy="give an image model of this package; hf-vanilla convert makes one of a ViT",
        device=device,
    )
    if model.config.problem_type == REGRESSION:
        raise ValueError(f"{name} is a regression, without labels: call the model in Python")
    return Classifier(model, processor)


# --- the command ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(ImageFilesOptions):
    """Classify the images of PATHS: files, folders, or - for paths from stdin."""

    format: str = option("csv", f"one of {', '.join(FORMATS)}", choices=FORMATS)
    top_k: int = option(5, "labels of each image", at_least=1)
    batch_size: int = option(32, "images at a time", at_least=1)


read_classification = partial(read_image_request, ClassifyOptions)


def classify_files(request: ImageRequest) -> None:
    """Write one line for each image, in the order of the paths; folders by sorted names.

    Raises:
        ValueError: the model is another, or an image is unreadable; the others have their lines
            then, unless the options say to stop.
        OSError: the output cannot be written.
    """
    options = request.options
    classifier = load_classifier(options.model, device=options.device)
    top_k = min(options.top_k, classifier.model.config.num_labels)
    guesses = partial(classifier.guesses, top_k=top_k)
    with output_and_results(request, guesses) as (file, passing):
        table = csv.writer(file, lineterminator="\n")
        if options.format == "csv":
            names = [f"{name}_{rank}" for rank in range(1, top_k + 1) for name in ("label", "p")]
            table.writerow(["path", *names, "error"])
        for result in passing:
            if options.format == "csv":
                cells: list[str] = [result.name]
                for guess in result.result or ():
                    cells += [guess.label, f"{guess.probability:.6f}"]
                cells += [""] * (1 + 2 * top_k - len(cells)) + [result.error or ""]
                # a path that is no UTF-8 has surrogates, which cannot be written
                cells = [os.fsencode(cell).decode(errors="backslashreplace") for cell in cells]
                table.writerow(cells)
            else:
                entry = {"path": result.name, "labels": [vars(g) for g in result.result or ()]}
                error = {"error": result.error} if result.error else {}
                file.write(json.dumps(entry | error) + "\n")


# --- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatchAttention:
    """Attention weights of one image.

    Attributes:
        weights: `(L, H, 1 + P, 1 + P)`; rows are queries and sum to 1.
        grid: rows and columns of patches.
        guesses: the model's five most probable labels for the image.
    """

    weights: Tensor
    grid: tuple[int, int]
    guesses: tuple[Guess, ...]

    @property
    def of_class_token(self) -> Tensor:
        """`(L, H, R, K)`: what the class token gives to each patch."""
        return self.weights[:, :, 0, 1:].unflatten(-1, self.grid)

    @property
    def rollout(self) -> Tensor:
        """`(R, K)`: likewise through all layers; see `rollout`."""
        return rollout(self.weights)[0, 1:].unflatten(-1, self.grid)


@torch.inference_mode()
def patch_attention(classifier: Classifier, image: "Image") -> PatchAttention:
    """Attention of every layer and head for one RGB image."""
    model = classifier.model
    pixels = classifier.processor(image, return_tensors="pt")["pixel_values"].to(model.device)
    with eager_attention(model):
        attentions = model(pixels, output_attentions=True).attentions
    weights = torch.cat(attentions).float().cpu()  # L of (1, H, 1 + P, 1 + P)
    return PatchAttention(weights, model.config.grid, classifier.guesses([image])[0])


def rollout(weights: Tensor) -> Tensor:
    """Attention through all layers: the product of each layer's mean over heads and the identity.

    The identity stands for the residual connection, and both count half (Abnar and Zuidema, 2020).

    Args:
        weights: `(L, H, N, N)`, rows sum to 1.

    Returns:
        `(N, N)`, rows sum to 1.
    """
    identity = torch.eye(weights.shape[-1])
    product = identity
    for layer in weights.mean(dim=1):
        product = (layer + identity) / 2 @ product
    return product
