"""The figure of the architecture states the numbers of the config."""

import pytest

from hf_vanilla import VanillaConfig
from hf_vanilla.plots.architecture import (
    PlotArchitectureOptions,
    parameter_count,
    plot_architecture,
)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.fixture
def draw(tmp_path, figures):
    """Draws with options; returns the texts and the title."""

    def drawn(**options):
        path = plot_architecture(
            PlotArchitectureOptions(output=str(tmp_path / "a.png"), overwrite=True, **options)
        )
        assert path.read_bytes()[1:4] == b"PNG"
        return texts(figures[-1]), figures[-1].get_suptitle()

    return drawn


def test_the_papers_base_model_comes_without_options(draw):
    found, title = draw()
    assert found.count("6 x") == 2
    assert found.count("Feed forward\n512 → 2,048 → 512") == 2
    assert found.count("Multi-head attention\n8 heads of 64") == 2  # encoder and cross-attention
    assert found.count("Masked multi-head attention\n8 heads of 64") == 1
    assert "Linear\n512 → 37,000" in found
    assert title == "The Transformer: d_model 512, 63,045,632 parameters"


def test_encoder_and_decoder_of_a_model_have_their_own_numbers(draw, tiny_config, tmp_path):
    tiny_config.save_pretrained(tmp_path / "model")
    found, _ = draw(model=str(tmp_path / "model"), theme="dark")
    assert [text for text in found if text.endswith(" x")] == ["2 x", "5 x"]
    ffns = [text for text in found if text.startswith("Feed forward")]
    assert ffns == ["Feed forward\n12 → 29 → 12", "Feed forward\n12 → 31 → 12"]
    assert "Masked multi-head attention\n2 heads of 6" in found


def test_tied_weights_count_once(tiny_config, tiny_model):
    assert parameter_count(tiny_config) == sum(p.numel() for p in tiny_model.parameters())


def test_a_recipe_is_drawn_with_its_model(draw, tmp_path):
    text = "model: {d_model: 24, encoder_layers: 3, position_embedding_type: learned}\n"
    (tmp_path / "mine.yaml").write_text(text)
    found, _ = draw(recipe=str(tmp_path / "mine.yaml"))
    assert "3 x" in found
    assert found.count("+ positions\nlearned") == 2


def test_a_model_and_a_recipe_at_once_are_refused():
    with pytest.raises(ValueError, match="model='m' and recipe='r': give one of them"):
        PlotArchitectureOptions(model="m", recipe="r")


def test_a_model_of_another_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    options = PlotArchitectureOptions(model=str(tmp_path), output=str(tmp_path / "a.png"))
    with pytest.raises(ValueError, match="is a model of type 'marian'"):
        plot_architecture(options)
    assert not (tmp_path / "a.png").exists()


def test_a_config_with_a_final_norm_shows_it(draw, tmp_path):
    VanillaConfig(final_layer_norm=True).save_pretrained(tmp_path / "model")
    found, _ = draw(model=str(tmp_path / "model"))
    assert found.count("Norm\n512") == 2
