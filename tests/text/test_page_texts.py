"""The page of translation: any text, searches, sampling, lengths, models of transformers."""

import pytest
import torch
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_vanilla.models.packing_vanilla import is_packable
from hf_vanilla.text import page as page_module
from hf_vanilla.text import page_search, served_models
from hf_vanilla.text.attentions import CROSS, attentions
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.page import TextPage
from hf_vanilla.text.served_models import MAX_MESSAGE, errors_of, served_model
from hf_vanilla.text.translator import Translator

SENTENCE = "three one four"


@pytest.fixture
def ask(trained_run):
    def ask(text, name=trained_run, **changes):
        page = TextPage(str(name))
        return page.translate({"text": text, "beams": 2, **changes})

    return ask


def ids_of(found):
    return [hypothesis["ids"] for hypothesis in found["hypotheses"]]


# --- results -----------------------------------------------------------------------------------


def test_served_models_are_packed_for_decoding(trained_run):
    model = served_model(str(trained_run)).model
    assert not any(map(is_packable, model.modules()))


@pytest.fixture
def draw(ask):
    def draw(seed, temperature=5.0, **changes):
        sampling = {"temperature": temperature, "seed": seed, **changes}
        return ask(SENTENCE, beams=3, sampling=sampling)

    return draw


def test_sampled_translations_are_those_of_the_translator_with_this_seed(draw, trained):
    result = draw(7, top_k=11, top_p=0.9)
    fields = {"do_sample": True, "temperature": 5.0, "top_k": 11, "top_p": 0.9}
    engine = TorchEngine(*trained, seed=7, num_beams=1, **fields)
    (expected,) = Translator(engine).n_best([SENTENCE], 3)
    assert ids_of(result) == [hypothesis.ids for hypothesis in expected]
    for shown, hypothesis in zip(result["hypotheses"], expected, strict=True):
        assert shown["score"] == pytest.approx(hypothesis.score, abs=1e-4)
    assert result["steps"] == []


def test_scores_of_sampled_translations_are_log_probabilities_of_the_model(draw, trained):
    result = draw(7)
    scores = [hypothesis["score"] for hypothesis in result["hypotheses"]]
    assert scores == sorted(scores, reverse=True)
    for hypothesis, ids in zip(result["hypotheses"], ids_of(result), strict=True):
        seen = attentions(*trained, SENTENCE, translation=ids)
        log_probs = seen.log_probs.gather(1, torch.tensor(ids)[:, None])
        assert hypothesis["logProb"] == pytest.approx(log_probs.sum().item(), rel=1e-4)


def test_a_seed_and_nothing_else_decides_what_is_drawn(draw):
    assert draw(1) == draw(1)
    assert ids_of(draw(1)) != ids_of(draw(2))


def test_without_top_k_every_token_can_be_drawn(draw, trained):
    ranks = []
    for seed in range(8):
        for ids in ids_of(draw(seed, temperature=10.0)):
            log_probs = attentions(*trained, SENTENCE, translation=ids).log_probs
            chosen = log_probs.gather(1, torch.tensor(ids)[:, None])
            ranks += (log_probs > chosen).sum(-1).tolist()
    assert max(ranks) > 50  # the default of transformers draws from 50 tokens


@pytest.mark.parametrize("sampling", [None, {"seed": "1"}])
def test_lengths_are_those_of_generate(ask, sampling):
    lengths = {"min_new_tokens": "6", "max_new_tokens": "8"}
    found = ask("two", sampling=sampling, lengths=lengths)
    assert all(6 <= len(ids) <= 8 for ids in ids_of(found))
    found = ask(SENTENCE, sampling=sampling, lengths={"max_new_tokens": "1"})
    assert {len(ids) for ids in ids_of(found)} == {1}


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_a_length_that_the_model_does_not_reach_is_refused(ask, trained_run):
    lengths = {"min_new_tokens": "400"}
    problem = r"limit for this sentence is \d+ tokens, and the minimum length is 400: lower it"
    with pytest.raises(ValueError, match=problem):
        ask("two", lengths=lengths)
    (first, _) = ids_of(ask("two", lengths={**lengths, "max_new_tokens": "410"}))
    assert len(first) > 400
    page = TextPage(str(trained_run))
    assert len(page.attend({"text": "two", "ids": first})["steps"]) == len(first)


def test_ids_that_are_no_translation_are_refused(trained_run):
    page = TextPage(str(trained_run))
    for ids in [[], [-1], [10**9], ["1"], [True], [1] * 5000, "12", None, [[1]]]:
        with pytest.raises(ValueError, match="This translation is none of the model"):
            page.attend({"text": SENTENCE, "ids": ids})


def test_a_search_that_takes_too_long_is_stopped_and_reported(ask, monkeypatch):
    for module in (page_search, page_module):
        monkeypatch.setattr(module, "MAX_SECONDS", 0)
    with pytest.raises(ValueError, match=r"stopped after 0 seconds: give a shorter text"):
        ask(SENTENCE)


def test_a_model_is_described_in_one_line(trained_run, trained):
    millions = trained[0].num_parameters() / 1e6
    description = served_model(str(trained_run)).description
    assert description == f"{millions:.1f} million parameters, 1 + 1 layers, 2 + 2 heads"


def test_models_of_transformers_work_too(ask, trained, tmp_path):
    tokenizer = trained[1]
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config)
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert served_model(str(tmp_path)).description == "0.0 million parameters"
    found = ask(SENTENCE, tmp_path)
    assert len(found["hypotheses"]) == 2
    assert not found["hasLayers"]
    assert found["attention"]["kinds"][CROSS]["shape"][:2] == [2, 2]


def test_a_model_whose_output_layer_is_its_table_attends_to_a_translation(trained, tmp_path):
    tokenizer = trained[1]
    sides = {
        f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "ffn_dim")
    }
    sides |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"src_vocab_size": len(tokenizer), "tgt_vocab_size": len(tokenizer)}
    config = FSMTConfig(langs=["en", "de"], max_position_embeddings=64, **sides, **ids, **sizes)
    FSMTForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    page = TextPage(str(tmp_path))
    assert len(page.attend({"text": SENTENCE, "ids": [3, 4]})["steps"]) == 2
    with pytest.raises(ValueError, match="This translation is none of the model"):
        page.attend({"text": SENTENCE, "ids": [len(tokenizer)]})


# --- any text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  ", "\n\t\n", "\u2003"], ids=repr)
def test_a_blank_text_is_refused(ask, text):
    with pytest.raises(ValueError, match="There is no text: type a sentence"):
        ask(text)


def test_a_text_of_too_many_tokens_is_refused_with_their_number(ask, trained, monkeypatch):
    monkeypatch.setattr(page_module, "MAX_TOKENS", 13)
    text = "one " * 30
    count = len(trained[1](text).input_ids)
    with pytest.raises(ValueError, match=f"has {count} tokens; the limit is 13"):
        ask(text)


def test_a_text_beyond_the_tokenizers_limit_is_refused(ask, trained):
    assert trained[1].model_max_length == 40
    with pytest.raises(ValueError, match="the limit is 40"):
        ask("x " * 41)


def test_a_huge_text_is_refused_before_its_model_is_loaded(trained_run, monkeypatch):
    page = TextPage(str(trained_run), models_folder="/")
    monkeypatch.setattr(served_models, "load_translator", lambda _, **__: pytest.fail("was loaded"))
    asked = {"text": "x" * 10_000_000, "beams": 2, "model": str(trained_run)}
    with pytest.raises(ValueError, match="has 10,000,000 characters"):
        page.translate(asked)


def test_line_ends_are_spaces(ask):
    assert ask("three\none\r\nfour")["sentence"] == "three one four"


@pytest.mark.parametrize(
    "text",
    ["\ud800", "a\udfffb", "\0", "<b>{{1}}</b>", "</s><pad>", "שלום", "\u202e\u2066", "😀"],
    ids=ascii,
)
def test_any_text_gets_a_result(ask, text):
    result = ask(text)
    assert len(result["hypotheses"]) == 2
    result["sentence"].encode("utf-8")


def test_an_error_of_a_model_is_reported_in_one_line(ask, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out\nof memory")

    monkeypatch.setattr(page_search, "best_translations", fail)
    with pytest.raises(ValueError, match=r"failed at this text: out of memory$"):
        ask(SENTENCE)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("x" * 1000), "x" * MAX_MESSAGE + "…"), (KeyError(), "KeyError")],
    ids=["long", "empty"],
)
def test_a_long_message_is_cut_and_an_empty_one_is_the_name_of_its_error(error, reason):
    problem = f"^mine failed at this text: {reason}$"
    with pytest.raises(ValueError, match=problem), errors_of("mine"):
        raise error
