"""Figures of an image model."""

import numpy as np
import pytest
import torch
from image_models import vit
from PIL import Image

from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.plot import PlotPatchesOptions, plot_patches, save_confusion
from hf_vanilla.plots.figures import plot, read_plot

pytest.importorskip("matplotlib")


@pytest.fixture
def folder(tmp_path):
    vit(id2label={index: f"kind {index}" for index in range(7)}).save_pretrained(tmp_path / "model")
    processor = image_processor((15, 20), [0.5] * 3, [0.5] * 3)
    processor.save_pretrained(tmp_path / "model")
    values = np.random.default_rng(3).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "image.png")
    return tmp_path


def draw(folder, **changes):
    options = {"model": str(folder / "model"), "output": str(folder / "figure.svg"), **changes}
    return plot_patches(PlotPatchesOptions(overwrite=True, **options)).read_text()


def test_attention_has_a_panel_for_each_layer_and_head(folder):
    text = draw(folder, image=str(folder / "image.png"))
    assert text.count('id="axes_') == 2 * 3
    text = draw(folder, image=str(folder / "image.png"), layer=-1)
    assert text.count('id="axes_') == 3


def test_rollout_positions_and_filters_are_drawn(folder):
    assert draw(folder, kind="rollout", image=str(folder / "image.png")).count('id="axes_') == 2
    assert draw(folder, kind="positions").count('id="axes_') == 12
    assert draw(folder, kind="filters").count('id="axes_') == 24


@pytest.mark.parametrize("kind", ["attention", "rollout"])
def test_attention_is_drawn_on_the_part_of_the_image_that_the_model_sees(folder, kind, monkeypatch):
    processor = image_processor((15, 20), [0.5] * 3, [0.5] * 3)
    processor.size, processor.crop_size = {"shortest_edge": 30}, {"height": 15, "width": 20}
    processor.do_center_crop = True
    processor.save_pretrained(folder / "model")
    shown = []
    monkeypatch.setattr(
        "hf_vanilla.images.plot.show_image", lambda panel, image, *_: shown.append(image)
    )
    draw(folder, kind=kind, image=str(folder / "image.png"))
    middle = Image.open(folder / "image.png").crop((10, 7, 30, 22))
    assert {image.tobytes() for image in shown} == {middle.tobytes()}


def test_the_command_line_draws_patches(folder):
    arguments = ["patches", "--model", str(folder / "model"), "--kind", "positions"]
    path = plot(read_plot([*arguments, "--output", str(folder / "p.png")]))
    assert Image.open(path).size[0] > 100


def test_what_cannot_be_drawn_is_named(folder):
    with pytest.raises(ValueError, match="kind='attention' needs an image"):
        PlotPatchesOptions(model="m")
    with pytest.raises(ValueError, match="kind='heads': choose one of attention, rollout"):
        PlotPatchesOptions(model="m", kind="heads")
    for kind in ("rollout", "positions", "filters"):
        with pytest.raises(ValueError, match=f"^kind='{kind}' has no layer: leave --layer out$"):
            PlotPatchesOptions(model="m", image="i", kind=kind, layer=0)
    with pytest.raises(ValueError, match="layer=2: the model has layers 0 to 1"):
        draw(folder, image=str(folder / "image.png"), layer=2)


def test_the_confusion_figure_shows_counts(folder):
    confusion = torch.tensor([[17, 0], [3, 0]])
    save_confusion(confusion, ("cat", "dog"), folder / "c.png")
    assert Image.open(folder / "c.png").size[0] > 100
