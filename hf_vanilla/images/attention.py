"""Which patches an image classifier attends to.

Shapes: L layers, H heads, P patches in R rows and K columns, D `d_model`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .classifier import Classifier, Guess

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class PatchAttention:
    """Attention weights of one image.

    Attributes:
        weights: `(L, H, 1 + P, 1 + P)`; rows are queries and sum to 1.
        grid: rows and columns of patches.
        guesses: the model's labels for the image.
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
        """`(R, K)`: see `rollout`."""
        return rollout(self.weights)[0, 1:].unflatten(-1, self.grid)


@torch.inference_mode()
def patch_attention(classifier: Classifier, image: "Image", *, top_k: int = 5) -> PatchAttention:
    """Attention of every layer and head for one RGB image."""
    model = classifier.model
    pixels = classifier.processor(image, return_tensors="pt")["pixel_values"].to(model.device)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the others keep no weights
    try:
        attentions = model(pixels, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    weights = torch.cat(attentions).float().cpu()  # L of (1, H, 1 + P, 1 + P)
    return PatchAttention(weights, model.config.grid, classifier.guesses([image], top_k=top_k)[0])


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


def position_similarity(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cosine of each patch's position with all others.

    Args:
        positions: `(1, 1 + P, D)`.
        grid: rows and columns of patches.

    Returns:
        `(R, K, R, K)` in [-1, 1].
    """
    unit = torch.nn.functional.normalize(positions[0, 1:].detach().float(), dim=-1)
    return (unit @ unit.T).view(*grid, *grid)


def patch_filters(projection: Tensor, count: int) -> Tensor:
    """Main directions of the patch projection, as images.

    Args:
        projection: `(D, C, height, width)` weights of the convolution.
        count: how many, at most D.

    Returns:
        `(count, C, height, width)` in [0, 1], the strongest first.
    """
    flat = projection.detach().float().flatten(1)
    _, _, directions = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    filters = directions[:count]
    low, high = filters.amin(1, keepdim=True), filters.amax(1, keepdim=True)
    return ((filters - low) / (high - low).clamp(min=1e-12)).view(-1, *projection.shape[1:])
