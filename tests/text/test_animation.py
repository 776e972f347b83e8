"""The animated figure of a translation: frames, times, colours."""

import numpy as np
import pytest
import torch
from PIL import Image

from hf_vanilla.plots.figures import figure_style
from hf_vanilla.text.animation import PlotAnimationOptions, frames_of, plot_animation
from hf_vanilla.text.attentions import Attentions

pytest.importorskip("matplotlib")


def seen(source, target, cross):
    none = torch.zeros(1, 1, 1, 1)
    read = ["<start>", *target[:-1]]
    log_probs = torch.zeros(len(target), 3)
    return Attentions(source, target, read, none, none, cross, log_probs, [0] * len(target))


def test_the_package_s_model_translates_with_a_frame_for_each_token(tmp_path):
    path = tmp_path / "a.gif"
    plot_animation(PlotAnimationOptions(sentence="forty-two", output=str(path), seconds=0.5))
    with Image.open(path) as image:
        frames = image.n_frames
        times = []
        for index in range(frames):
            image.seek(index)
            times.append(image.info["duration"])
    assert frames == 1 + 3 + 1  # zwei, undvierzig, </s>
    assert times == [500] * 4 + [1500]
    assert path.stat().st_size < 60_000


def test_a_line_leads_from_the_new_token_to_what_it_attends_to():
    cross = torch.zeros(2, 1, 2, 3)
    cross[1, 0, 0, 2] = cross[1, 0, 1, 0] = 1  # the first layer is not drawn
    cross[0, 0, :, 1] = 1
    with figure_style("light") as theme:
        before, first, second, last = frames_of(
            seen(["aaa", "bbb", "ccc"], ["xxx", "yyy"], cross), theme
        )
    assert columns(before, 210).size == 0
    right, left = columns(first, 210), columns(second, 210)
    width = first.size[0]
    assert right.min() > width / 2  # "ccc" is on the right
    assert left.min() < width / 2  # "aaa" on the left, and the first line stays
    assert left.max() > width / 2
    assert columns(last, 210).size


def columns(frame, height):
    """Columns with colour in the row of dots `height` above the lower edge."""
    row = np.asarray(frame, int)[frame.size[1] - height]
    return np.flatnonzero(np.ptp(row, axis=-1) > 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": 0}, "seconds=0: give 0.02 to 60"),
        ({"output": "a.png"}, "end it with .gif"),
        ({"sentence": "one hundred " * 12}, "give a shorter sentence"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        plot_animation(PlotAnimationOptions(**changes))
