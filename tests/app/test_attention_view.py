"""The attention view as HTML: whose weights it carries, what stands where, nothing unescaped."""

import html
import json
import re
from html.parser import HTMLParser

import pytest
import torch

from hf_vanilla.app.attention_view import (
    CROSS,
    DECODER,
    ENCODER,
    KINDS,
    MEAN,
    attention_page,
    direction,
    one_head,
)
from hf_vanilla.translation.attentions import Attentions

LAYERS, HEADS, SOURCE, TARGET = 2, 3, ["der", "␣Hund", "</s>"], ["a", "␣do", "g", "</s>"]


def weights(layers, heads, queries, keys):
    """Positive rows that sum to 1."""
    return torch.rand(layers, heads, queries, keys).softmax(-1)


@pytest.fixture
def seen():
    source, target = len(SOURCE), len(TARGET)
    return Attentions(
        source=SOURCE,
        target=TARGET,
        read=["<start>", *TARGET[:-1]],
        encoder=weights(LAYERS + 1, HEADS + 2, source, source),
        decoder=weights(LAYERS, HEADS, target, target),
        cross=weights(LAYERS, HEADS, target, source),
    )


class Page(HTMLParser):
    """Tags in order, the tokens of both sides, and the weights."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.tokens, self.weights, self.told = (
            [],
            {"looking": [], "looked-at": []},
            [],
            "",
        )
        self.directions, self._side, self._in_token = [], None, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        classes = (attributes.get("class") or "").split()
        if "attention" in classes:
            self.weights = json.loads(attributes["data-weights"])
        if "tokens" in classes:
            self._side = classes[1]
            self.directions.append(attributes["dir"])
        self._in_token = tag == "bdi"

    def handle_endtag(self, tag):
        self._in_token = False

    def handle_data(self, data):
        self.told += data
        if self._in_token:
            self.tokens[self._side].append(data)


@pytest.mark.parametrize(
    ("kind", "looking", "looked_at"),
    [
        (CROSS, TARGET, SOURCE),
        (ENCODER, SOURCE, SOURCE),
        (DECODER, TARGET, ["<start>", *TARGET[:-1]]),
    ],
)
def test_each_kind_has_its_tokens_on_both_sides(seen, kind, looking, looked_at):
    page = Page(attention_page(seen, kind, 0, 1))
    assert page.tokens == {"looking": looking, "looked-at": looked_at}
    assert [len(row) for row in page.weights] == [len(looked_at)] * len(looking)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 2), (1, MEAN)])
def test_layer_and_head_choose_their_weights_in_thousandths(seen, kind, layer, head):
    of_kind = {CROSS: seen.cross, ENCODER: seen.encoder, DECODER: seen.decoder}[kind]
    expected = of_kind[layer].mean(0) if head == MEAN else of_kind[layer, head]
    assert torch.equal(one_head(seen, kind, layer, head), expected)
    page = Page(attention_page(seen, kind, layer, head))
    # rounding to the nearest thousandth
    torch.testing.assert_close(torch.tensor(page.weights) / 1000, expected, rtol=0, atol=5.1e-4)


def test_the_title_tells_which(seen):
    assert "Cross-attention, layer 1, head 2." in Page(attention_page(seen, CROSS, 1, 2)).told
    told = Page(attention_page(seen, ENCODER, 2, MEAN)).told
    assert "Encoder self-attention, layer 2, mean of 5 heads." in told


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'>",
    "&lt;b&gt;",
    "**b**",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_text_whatever_it_says(seen, kind):
    plain = Page(attention_page(seen, kind, 0, 0))
    sides = {"source": HOSTILE[:3], "target": HOSTILE[1:], "read": HOSTILE[:4]}
    hostile = Page(attention_page(Attentions(**{**vars(seen), **sides}), kind, 0, 0))
    assert hostile.tags == plain.tags
    assert set(hostile.tokens["looking"] + hostile.tokens["looked-at"]) <= set(HOSTILE)


def test_one_token_can_be_reached_by_the_tab_key(seen):
    page = attention_page(seen, CROSS, 0, 0)
    assert re.findall(r'role="option"[^>]*tabindex="(-?\d)"', page) == ["0", "-1", "-1", "-1"]
    assert html.unescape(page).count('role="listbox"') == 1


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["⟨D7⟩", "שלום"], "ltr"),  # bytes are written in letters from left to right
        (["␣", "שלום", "abc"], "rtl"),
        (["12", "مرحبا"], "rtl"),
        (["12", "abc", "مرحبا"], "ltr"),
        (["1", "!"], "ltr"),
        ([], "ltr"),
    ],
)
def test_tokens_run_as_their_first_letter_does(tokens, expected):
    assert direction(tokens) == expected


def test_each_side_has_its_own_direction(seen):
    page = Page(
        attention_page(Attentions(**{**vars(seen), "source": ["שלום", "!", "</s>"]}), CROSS, 1, 1)
    )
    assert page.directions == ["ltr", "rtl"]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (("sideways", 1, 1), "kind='sideways': choose one of cross-attention, encoder"),
        ((CROSS, 2, 1), "layer=2: cross-attention has layers 0 to 1"),
        ((CROSS, -1, 1), "layer=-1"),
        ((ENCODER, 1, 5), "head=5: encoder self-attention has heads 0 to 4, and 'mean'"),
        ((CROSS, 1, -1), "head=-1"),
        ((CROSS, 1, "all"), "head='all'"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_refused(seen, choice, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        attention_page(seen, *choice)
