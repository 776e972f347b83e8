"""Attention as HTML for notebooks: every weight, nothing that runs or loads."""

import re
from html.parser import HTMLParser

import pytest
import torch
from chromium import HOSTILE, launched, needs_chromium

from hf_vanilla.text.attention_html import attention_html
from hf_vanilla.text.attentions import Attentions

L, H, S, T = 2, 3, 4, 3
SIDES = {
    "cross": ("target", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "read"),
}


class Tables(HTMLParser):
    """Texts of the cells of every table, and all tags."""

    def __init__(self, html):
        super().__init__()
        self.tables, self.tags, self.cell = [], [], None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag in ("th", "td"):
            self.tables[-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.tables[-1][-1] += data


@pytest.fixture
def seen():
    return Attentions(
        source=["a", "␣b", HOSTILE, "</s>"],
        target=["x", "␣y", "</s>"],
        read=["<start>", "x", "␣y"],
        encoder=torch.rand(L, H, S, S).softmax(-1),
        decoder=torch.rand(L, H, T, T).softmax(-1),
        cross=torch.rand(L, H, T, S).softmax(-1),
        log_probs=torch.rand(T, 11),
        target_ids=[5, 6, 1],
    )


@pytest.mark.parametrize("kind", SIDES)
def test_each_head_and_each_mean_has_a_table_of_its_weights_in_percent(seen, kind):
    found = Tables(attention_html(seen, kind=kind))
    weights = getattr(seen, kind)
    with_means = torch.cat([weights.mean(1, keepdim=True), weights], dim=1).flatten(0, 1)
    queries, keys = (getattr(seen, side) for side in SIDES[kind])
    assert len(found.tables) == L * (H + 1)
    for cells, expected in zip(found.tables, with_means, strict=True):
        assert cells[: 1 + len(keys)] == ["", *keys]
        rows = [
            cells[i : i + 1 + len(keys)] for i in range(1 + len(keys), len(cells), 1 + len(keys))
        ]
        assert [row[0] for row in rows] == queries
        assert [[int(text or 0) for text in row[1:]] for row in rows] == [
            [round(100 * weight) for weight in row] for row in expected.tolist()
        ]


def test_it_runs_and_loads_nothing_and_two_pieces_share_no_name(seen):
    first, second = attention_html(seen), attention_html(seen)
    assert {"script", "img", "link", "iframe"}.isdisjoint(Tables(first).tags)
    assert "http" not in first
    names = [set(re.findall(r'(?:name|id)="([^"]*)"', html)) for html in (first, second)]
    assert not names[0] & names[1]
    assert "\n\n" not in first  # Markdown would end the block there


def test_what_cannot_be_shown_is_refused(seen):
    with pytest.raises(ValueError, match="kind='x': choose one of cross"):
        attention_html(seen, kind="x")
    wide = torch.zeros(6, 8, 40, 40)
    with pytest.raises(ValueError, match="6 layers of 8 heads for 40 x 40 tokens"):
        attention_html(Attentions([], [], [], wide, wide, wide, wide[0, 0], []))


@pytest.mark.slow
@needs_chromium
def test_a_radio_button_chooses_the_head_by_mouse_and_keyboard(seen):
    with launched() as browser:
        tab = browser.new_page()
        tab.set_content(attention_html(seen) + attention_html(seen, kind="encoder"))
        visible = tab.locator("figcaption:visible")
        assert visible.all_text_contents() == [
            "Cross-attention, layer 1, mean",
            "Encoder self-attention, layer 1, mean",
        ]
        tab.get_by_label("layer 0, head 1").first.click()
        assert visible.all_text_contents()[0] == "Cross-attention, layer 0, head 1"
        tab.keyboard.press("ArrowRight")
        assert visible.all_text_contents() == [
            "Cross-attention, layer 0, head 2",
            "Encoder self-attention, layer 1, mean",
        ]
        assert tab.evaluate("window.broken") is None
