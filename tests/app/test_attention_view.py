"""The attention figure as HTML: weights, tokens of both sides, escaping."""

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
    attention_figure,
    direction,
    one_head,
)
from hf_vanilla.translation.attentions import Attentions

LAYERS, HEADS, SOURCE, TARGET = 2, 3, ["der", "␣Hund", "</s>"], ["a", "␣do", "g", "</s>"]


def weights(layers, heads, queries, keys):
    """Positive rows that sum to 1."""
    return torch.rand(layers, heads, queries, keys).softmax(-1)


@pytest.fixture
def sample():
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
        self.tags, self.tokens, self.weights = [], {"queries": [], "keys": []}, []
        self.directions, self._side, self._in_token, self.text = [], None, False, ""
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
        self.text += data
        if self._in_token:
            self.tokens[self._side].append(data)


@pytest.mark.parametrize(
    ("kind", "queries", "keys"),
    [
        (CROSS, TARGET, SOURCE),
        (ENCODER, SOURCE, SOURCE),
        (DECODER, TARGET, ["<start>", *TARGET[:-1]]),
    ],
)
def test_queries_and_keys_are_those_of_the_kind(sample, kind, queries, keys):
    page = Page(attention_figure(sample, kind, 0, 1))
    assert page.tokens == {"queries": queries, "keys": keys}
    assert [len(row) for row in page.weights] == [len(keys)] * len(queries)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 2), (1, MEAN)])
def test_weights_are_those_of_the_layer_and_head_in_thousandths(sample, kind, layer, head):
    of_kind = {CROSS: sample.cross, ENCODER: sample.encoder, DECODER: sample.decoder}[kind]
    expected = of_kind[layer].mean(0) if head == MEAN else of_kind[layer, head]
    assert torch.equal(one_head(sample, kind, layer, head), expected)
    page = Page(attention_figure(sample, kind, layer, head))
    # rounding to the nearest thousandth
    torch.testing.assert_close(torch.tensor(page.weights) / 1000, expected, rtol=0, atol=5.1e-4)


def test_the_title_names_kind_layer_and_head(sample):
    assert "Cross-attention, layer 1, head 2." in Page(attention_figure(sample, CROSS, 1, 2)).text
    text = Page(attention_figure(sample, ENCODER, 2, MEAN)).text
    assert "Encoder self-attention, layer 2, mean of 5 heads." in text


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'>",
    "&lt;b&gt;",
    "**b**",
]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_escaped(sample, kind):
    plain = Page(attention_figure(sample, kind, 0, 0))
    sides = {"source": HOSTILE[:3], "target": HOSTILE[1:], "read": HOSTILE[:4]}
    hostile = Page(attention_figure(Attentions(**{**vars(sample), **sides}), kind, 0, 0))
    assert hostile.tags == plain.tags
    assert set(hostile.tokens["queries"] + hostile.tokens["keys"]) <= set(HOSTILE)


def test_one_token_is_in_the_tab_order(sample):
    page = attention_figure(sample, CROSS, 0, 0)
    assert re.findall(r'role="option"[^>]*tabindex="(-?\d)"', page) == ["0", "-1", "-1", "-1"]
    assert html.unescape(page).count('role="listbox"') == 1


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["⟨D7⟩", "שלום"], "ltr"),  # hexadecimal is written from left to right
        (["␣", "שלום", "abc"], "rtl"),
        (["12", "مرحبا"], "rtl"),
        (["12", "abc", "مرحبا"], "ltr"),
        (["1", "!"], "ltr"),
        ([], "ltr"),
    ],
)
def test_direction_is_that_of_the_first_letter(tokens, expected):
    assert direction(tokens) == expected


def test_each_side_has_its_own_direction(sample):
    page = Page(
        attention_figure(
            Attentions(**{**vars(sample), "source": ["שלום", "!", "</s>"]}), CROSS, 1, 1
        )
    )
    assert page.directions == ["ltr", "rtl"]


@pytest.mark.parametrize(
    ("choice", "message"),
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
def test_a_kind_layer_or_head_that_does_not_exist_is_refused(sample, choice, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_figure(sample, *choice)
