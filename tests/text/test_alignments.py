"""Word alignments: parts and rates by hand, links of a model that aligns."""

import copy
import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from hf_vanilla.data.corpus import built_in_numbers, number_words
from hf_vanilla.text.alignments import (
    AlignedPair,
    Aligner,
    AlignmentHead,
    aligned_words,
    error_rate,
    error_rates,
    part_weights,
    pharaoh,
    saved_head,
    token_shares,
    word_spans,
)
from hf_vanilla.text.attentions import attentions
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.pair_files import AlignOptions, align_files, aligned_number
from hf_vanilla.text.translator import Translator

# --- numbers ------------------------------------------------------------------------------------


def test_the_parts_of_a_number_by_hand():
    pair = aligned_number(121_023)
    parts = [pair.source[a:b] for a, b in pair.source_spans]
    assert parts == ["one", "hundred", "twenty", "one", "thousand", "twenty", "three"]
    translated = [pair.target[a:b] for a, b in pair.target_spans]
    words = ["ein", "hundert", "ein", "und", "zwanzig", "tausend", "drei", "und", "zwanzig"]
    assert translated == words
    sure = {(0, 0), (1, 1), (3, 2), (2, 4), (4, 5), (6, 6), (5, 8)}
    assert pair.sure == sure
    assert pair.possible == sure | {(3, 3), (2, 3), (6, 7), (5, 7)}


def test_all_letters_of_a_number_lie_in_one_part():
    for number in [0, 7, 20, 31, 100, 201, 1000, 1001, 80_080, 101_000, 999_999]:
        pair = aligned_number(number)
        assert {"source": pair.source, "target": pair.target} == number_words(number)
        assert "".join(pair.target[a:b] for a, b in pair.target_spans) == pair.target
        letters = "".join(pair.source[a:b] for a, b in pair.source_spans)
        assert letters == pair.source.replace(" ", "").replace("-", "")
        assert {j for _, j in pair.possible} == set(range(len(pair.target_spans)))


def test_the_splits_of_numbers_are_those_of_the_corpus():
    splits = built_in_numbers()
    assert len(splits["validation"]) == 1000
    assert not set(splits["validation"]) & set(splits["train"])


# --- tokens and parts ---------------------------------------------------------------------------


def test_tokens_belong_to_the_words_of_their_characters(tiny_tokenizer):
    text = "the  little\thouse ÄÖ"
    ids = tiny_tokenizer(text).input_ids
    shares = token_shares(tiny_tokenizer, ids, text, word_spans(text))
    assert shares.shape == (len(ids), 4)
    assert not shares[-1].any()  # </s>
    words = [""] * 4
    for token, row in zip(ids, shares, strict=True):
        if row.any():
            words[int(row.argmax())] += tiny_tokenizer.decode([token]).strip()
    assert words[:3] == ["the", "little", "house"]


def test_words_of_a_long_text_are_found_in_one_pass(tiny_tokenizer):
    text = "the " * 50_000  # minutes, if each character is compared with each word
    ids = tiny_tokenizer("the the", add_special_tokens=False).input_ids
    shares = token_shares(tiny_tokenizer, ids, text, word_spans(text))
    assert torch.equal(shares[:, :3].sum(0), torch.tensor([1.0, 1.0, 0.0]))


def test_the_weights_of_parts_by_hand():
    attention = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.0, 0.6, 0.4]])
    source = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    target = torch.tensor([[1.0], [1.0]])
    found = part_weights(attention, source, target, is_next=False)
    torch.testing.assert_close(found, torch.tensor([[0.55, 0.45]]))
    found = part_weights(attention, source, target, is_next=True)
    torch.testing.assert_close(found, torch.tensor([[0.45, 0.55]]))


def test_the_error_rate_of_och_and_ney_by_hand():
    gold = AlignedPair(
        "", "", (), (), frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 1)})
    )
    # of three links, one is sure and two are possible
    assert error_rate([[(0, 0), (2, 1), (5, 5)]], [gold]) == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert error_rate([[(0, 0), (1, 1)]], [gold]) == 0


# --- a model ------------------------------------------------------------------------------------

PAIRS = [("three one four", "drei eins vier"), (" ", "eins"), ("two", "zwei"), ("six five", "x")]


def test_the_attention_of_a_batch_is_that_of_single_sentences(trained):
    model, tokenizer = trained
    source, target = "three one four", "drei eins vier"
    head = AlignmentHead(layer=0, head=1)
    spans = word_spans(source), word_spans(target)
    aligner = Aligner(model, tokenizer, head)
    texts = [("two", "zwei"), (source, target)]
    found = aligner.weights(texts, [(word_spans("two"), word_spans("zwei")), spans], [head])[1][0]
    theirs = attentions(model, tokenizer, source, translation=target).cross[0, 1]
    ids = tokenizer(source).input_ids, tokenizer(target).input_ids
    shares = [
        token_shares(tokenizer, i, t, s) for i, t, s in zip(ids, texts[1], spans, strict=True)
    ]
    expected = part_weights(theirs, *shares, is_next=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_blank_sides_have_no_links_and_all_target_words_one(trained):
    found = Aligner(*trained).align(PAIRS)
    assert found[1] == []
    for (source, target), links in zip(PAIRS, found, strict=True):
        if source.strip():
            assert sorted(j for _, j in links) == list(range(len(target.split())))
            assert all(0 <= i < len(source.split()) for i, _ in links)


def test_a_missing_file_is_named_before_the_model_is_loaded(tmp_path):
    (tmp_path / "t").write_text("zwei\n")
    files = {"source": str(tmp_path / "gone"), "target": str(tmp_path / "t")}
    with pytest.raises(FileNotFoundError, match="gone"):
        align_files(AlignOptions(model=str(tmp_path / "no model"), **files))


def test_words_beyond_the_token_limit_have_no_links_and_the_line_is_named(
    trained_run, tmp_path, caplog
):
    long = " ".join(["drei"] * 300)
    (tmp_path / "s").write_text("two\nthree\n")
    (tmp_path / "t").write_text(f"zwei\n{long}\n")
    files = {"source": str(tmp_path / "s"), "target": str(tmp_path / "t")}
    output = align_files(AlignOptions(model=str(trained_run), output=str(tmp_path / "o"), **files))
    first, second = output.read_text().splitlines()
    tokenizer = load_translator(str(trained_run))[1]
    limit, tokens = tokenizer.model_max_length, len(tokenizer(text_target=long).input_ids)
    linked = [int(link.split("-")[1]) for link in second.split()]
    assert first == "0-0"
    assert linked == list(range(len(linked)))
    assert 0 < len(linked) <= limit < 300
    message = f"line 2: the target has {tokens} tokens; only the words of the first {limit} are"
    assert message in caplog.text
    caplog.clear()
    translator = Translator(str(trained_run))
    list(translator.translate_aligned(["two", "three " * 300], first_line=7))
    assert "line 8: the source has" in caplog.text


def test_a_model_with_nan_weights_aligns_nothing(trained):
    model = copy.deepcopy(trained[0])
    model.base_model.encoder.layers[0].fc1.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="attention weights are NaN"):
        Aligner(model, trained[1]).align(PAIRS)


def test_the_attention_implementation_of_the_model_stays(trained):
    before = trained[0].config._attn_implementation
    Aligner(*trained).align(PAIRS)
    assert trained[0].config._attn_implementation == before == "sdpa"


@pytest.mark.parametrize(
    "head",
    [
        None,
        AlignmentHead(layer=0, head=1),
        AlignmentHead(layer=0, head=0, is_next=True),
        AlignmentHead(layer=0, is_next=True),
    ],
)
def test_words_are_aligned_by_weights_that_are_there_as_by_the_command(trained, head):
    source, target = "three  one four", "drei eins vier"
    for pair in ((source, target), ("two", "zwei drei"), ("six five", "x")):
        seen = attentions(*trained, pair[0], translation=pair[1])
        found = aligned_words(seen, trained[1], pair[0], head)
        assert [found["links"]] == Aligner(*trained, head).align([pair])
        assert (found["source"], found["target"]) == (pair[0].split(), pair[1].split())
        assert found["head"] == vars(head or AlignmentHead(layer=0))
        words = [*found["starts"], len(seen.target) - 1]  # the end token is no word
        texts = ["".join(seen.target[a:b]).replace("␣", "") for a, b in pairwise(words)]
        assert texts == found["target"]


def test_a_translation_that_ends_at_its_limit_is_aligned_too(trained):
    ids = trained[1](text_target="drei eins").input_ids[:-1]
    seen = attentions(*trained, "three one", translation=ids)
    found = aligned_words(seen, trained[1], "three one", AlignmentHead(layer=0, is_next=True))
    assert found["target"] == ["drei", "eins"]
    assert [j for _, j in sorted(found["links"], key=lambda link: link[1])] == [0, 1]
    empty = attentions(*trained, "three one", translation=[trained[1].eos_token_id])
    found = aligned_words(empty, trained[1], "three one")
    assert (found["target"], found["starts"], found["links"]) == ([], [], [])


def test_words_of_two_vocabularies_or_of_a_head_that_is_not_there_are_not_aligned(trained):
    seen = attentions(*trained, "two")
    tokenizer = SimpleNamespace(init_kwargs={"target_pieces": ["a"]})
    assert aligned_words(seen, tokenizer, "two") is None
    with pytest.raises(ValueError, match="layer=9: the decoder has the layers 0 to 0"):
        aligned_words(seen, trained[1], "two", AlignmentHead(layer=9))


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", "[]", '{"best": {"layers": 1}}', '{"best": 1}'),
        *(f'{{"best": {{"layer": {layer}}}}}' for layer in ('"x"', "true", "-1", "null", "1.5")),
        '{"best": {"layer": 1, "head": "0"}}',
        '{"best": {"layer": 1, "is_next": 1}}',
    ],
)
def test_a_damaged_file_of_a_head_is_named(tmp_path, text):
    (tmp_path / "alignment.json").write_text(text)
    with pytest.raises(ValueError, match=r"alignment\.json names no layer: remove it, or write it"):
        saved_head(tmp_path)


@pytest.mark.parametrize(("head", "message"), [((9, None), "layer=9"), ((0, 9), "head=9")])
def test_a_head_that_is_not_there_is_refused(trained, head, message):
    with pytest.raises(ValueError, match=message):
        Aligner(*trained, AlignmentHead(layer=head[0], head=head[1]))


def test_a_model_of_transformers_aligns_too(trained):
    sizes = {"d_model": 12, "d_kv": 4, "d_ff": 8, "num_layers": 3, "num_heads": 5}
    config = T5Config(vocab_size=len(trained[1]), decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config)
    aligner = Aligner(model.eval(), trained[1], AlignmentHead(layer=2, head=4))
    (links,) = aligner.align(PAIRS[:1])
    assert {target for _, target in links} == {0, 1, 2}
    rates = error_rates(model, trained[1], [aligned_number(7)])
    assert {(one.layer, one.head) for one in rates} == {
        (layer, head) for layer in range(3) for head in (None, *range(5))
    }
    with pytest.raises(ValueError, match="layer=3: the decoder has the layers 0 to 2"):
        Aligner(model, trained[1], AlignmentHead(layer=3))


def test_two_vocabularies_are_refused(trained):
    tokenizer = SimpleNamespace(init_kwargs={"target_pieces": ["a"]})
    with pytest.raises(ValueError, match="one vocabulary for both"):
        Aligner(trained[0], tokenizer)


def test_the_best_head_is_chosen_and_used(trained_run, tmp_path, monkeypatch):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(trained_run, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
    (tmp_path / "s").write_text("three one\ntwo\n")
    (tmp_path / "t").write_text("drei eins\nzwei\n")
    (tmp_path / "g").write_text("\ufeff0-0 1-1\n0-0\n", encoding="utf-8")
    files = {"source": str(tmp_path / "s"), "target": str(tmp_path / "t")}
    table = align_files(AlignOptions(model=str(folder), gold=str(tmp_path / "g"), **files))
    assert "layer 0:" in table
    model, tokenizer = load_translator(str(folder))
    gold = [
        AlignedPair(
            "three one",
            "drei eins",
            ((0, 5), (6, 9)),
            ((0, 4), (5, 9)),
            *[frozenset({(0, 0), (1, 1)})] * 2,
        ),
        AlignedPair("two", "zwei", ((0, 3),), ((0, 4),), *[frozenset({(0, 0)})] * 2),
    ]
    rates = error_rates(model, tokenizer, gold)
    best = saved_head(folder)
    assert rates[best] == min(rates.values())
    output = align_files(AlignOptions(model=str(folder), output=str(tmp_path / "o"), **files))
    expected = Aligner(model, tokenizer, best).align([("three one", "drei eins"), ("two", "zwei")])
    assert output.read_text().splitlines() == [pharaoh(links) for links in expected]
    align_files(
        AlignOptions(model=str(folder), output=str(tmp_path / "j"), format="jsonl", **files)
    )
    record = json.loads((tmp_path / "j").read_text().splitlines()[1])
    assert record == {"source": ["two"], "target": ["zwei"], "alignment": [[0, 0]]}
    refused = {
        "0-0 7-1\n0-0\n": "line 1: there is no word 7-1",
        "0-0\n0-0 0:1\n": "line 2: '0:1' is no alignment",
        "\n\n": "g has no links",  # nothing is saved
    }
    for text, message in refused.items():
        (tmp_path / "g").write_text(text)
        with pytest.raises(ValueError, match=message):
            align_files(AlignOptions(model=str(folder), gold=str(tmp_path / "g"), **files))
    assert saved_head(folder) == best


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "give both --source and --target"),
        ({"gold": "numbers", "source": "x"}, "has its own texts"),
        ({"source": "x", "target": "y", "head": 1}, "head=1 needs a layer"),
        ({"gold": "numbers", "output": "x"}, "gold prints a table and aligns nothing"),
        ({"source": "x", "target": "y", "format": "x"}, "format='x': choose one of"),
    ],
)
def test_bad_options_of_align_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AlignOptions(model="m", **changes)
