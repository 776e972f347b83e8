"""The service: any text, any folder, several visitors at once."""

import pytest
import torch
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_vanilla.models.packing_vanilla import is_packable
from hf_vanilla.text import page_search
from hf_vanilla.text import page_service as service_module
from hf_vanilla.text.attentions import attentions
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.page_search import Lengths, Sampling, Search
from hf_vanilla.text.page_service import MAX_MESSAGE, PageService, one_line
from hf_vanilla.text.translator import Translator

SENTENCE = "three one four"


@pytest.fixture
def ask(trained_run):
    def ask(text, name=trained_run, num_beams=2, max_tokens=40):
        return PageService(max_tokens=max_tokens).translate(str(name), text, Search(num_beams))

    return ask


# --- results -----------------------------------------------------------------------------------


def test_a_result_has_the_n_best_list_and_the_attentions_of_the_best(ask, trained):
    result = ask(SENTENCE)
    expected = best_translations(*trained, SENTENCE, num_beams=2)
    assert [found.ids for found in result.hypotheses] == [one.ids for one in expected]
    scores = [found.score for found in result.hypotheses]
    assert scores == pytest.approx([one.score for one in expected], rel=1e-5)
    expected_weights = attentions(*trained, SENTENCE, translation=expected[0].ids)
    torch.testing.assert_close(result.attentions.cross, expected_weights.cross)
    assert result.attentions.target == expected_weights.target


def test_served_models_are_packed_for_decoding(trained_run):
    model, _ = PageService().load(str(trained_run))
    assert not any(map(is_packable, model.modules()))


@pytest.fixture
def draw(trained_run):
    def draw(seed, temperature=5.0, **changes):
        sampling = Sampling(temperature=temperature, seed=seed, **changes)
        return PageService(max_tokens=40).translate(
            str(trained_run), SENTENCE, Search(3, sampling=sampling)
        )

    return draw


def test_sampled_translations_are_those_of_the_translator_with_this_seed(draw, trained):
    result = draw(7, top_k=11, top_p=0.9)
    fields = {"do_sample": True, "temperature": 5.0, "top_k": 11, "top_p": 0.9}
    engine = TorchEngine(*trained, seed=7, num_beams=1, **fields)
    (expected,) = Translator(engine).n_best([SENTENCE], 3)
    assert result.hypotheses == expected
    assert result.steps == []


def test_scores_of_sampled_translations_are_log_probabilities_of_the_model(draw, trained):
    result = draw(7)
    scores = [hypothesis.score for hypothesis in result.hypotheses]
    assert scores == sorted(scores, reverse=True)
    for hypothesis in result.hypotheses:
        seen = attentions(*trained, SENTENCE, translation=hypothesis.ids)
        log_probs = seen.log_probs.gather(1, torch.tensor(hypothesis.ids)[:, None])
        penalty = ((5 + len(hypothesis.ids)) / 6) ** 0.6
        assert hypothesis.score * penalty == pytest.approx(log_probs.sum().item(), rel=1e-4)


def test_a_seed_and_nothing_else_decides_what_is_drawn(draw):
    assert draw(1).hypotheses == draw(1).hypotheses
    assert draw(1).hypotheses != draw(2).hypotheses


def test_without_top_k_every_token_can_be_drawn(draw, trained):
    ranks = []
    for seed in range(8):
        for hypothesis in draw(seed, temperature=10.0).hypotheses:
            log_probs = attentions(*trained, SENTENCE, translation=hypothesis.ids).log_probs
            chosen = log_probs.gather(1, torch.tensor(hypothesis.ids)[:, None])
            ranks += (log_probs > chosen).sum(-1).tolist()
    assert max(ranks) > 50  # the default of transformers draws from 50 tokens


@pytest.mark.parametrize("sampling", [None, Sampling(seed=1)])
def test_lengths_are_those_of_generate(trained_run, sampling):
    search = Search(2, sampling=sampling, lengths=Lengths(6, 8))
    found = PageService(max_tokens=40).translate(str(trained_run), "two", search).hypotheses
    assert all(6 <= len(hypothesis.ids) <= 8 for hypothesis in found)
    search = Search(2, sampling=sampling, lengths=Lengths(max_new_tokens=1))
    found = PageService(max_tokens=40).translate(str(trained_run), SENTENCE, search).hypotheses
    assert {len(hypothesis.ids) for hypothesis in found} == {1}


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_a_length_that_the_model_does_not_reach_is_refused(trained_run):
    search = Search(2, lengths=Lengths(min_new_tokens=400))
    problem = r"limit for this sentence is \d+ tokens, and the minimum length is 400: lower it"
    with pytest.raises(ValueError, match=problem):
        PageService(max_tokens=40).translate(str(trained_run), "two", search)
    search = Search(2, lengths=Lengths(400, 410))
    (first, _) = PageService(max_tokens=40).translate(str(trained_run), "two", search).hypotheses
    assert len(first.ids) > 400
    PageService(max_tokens=40).attend(str(trained_run), "two", first.ids)  # is a translation of it


def test_attend_computes_the_attentions_of_another_hypothesis(trained_run, trained):
    service = PageService(max_tokens=40)
    result = service.translate(str(trained_run), SENTENCE, Search(3))
    ids = result.hypotheses[1].ids
    found = service.attend(str(trained_run), SENTENCE, ids)
    assert torch.equal(found.decoder, attentions(*trained, SENTENCE, translation=ids).decoder)


def test_ids_that_are_no_translation_are_refused(trained_run):
    for ids in [[], [-1], [10**9], ["1"], [True], [1] * 5000, "12", None, [[1]]]:
        with pytest.raises(ValueError, match="This translation is none of the model"):
            PageService(max_tokens=40).attend(str(trained_run), SENTENCE, ids)


def test_a_search_that_takes_too_long_is_stopped_and_reported(trained_run, monkeypatch):
    for module in (page_search, service_module):
        monkeypatch.setattr(module, "MAX_SECONDS", 0)
    with pytest.raises(ValueError, match=r"stopped after 0 seconds: give a shorter text"):
        PageService().translate(str(trained_run), SENTENCE, Search(2))


def test_a_model_is_described_in_one_line(trained_run, trained):
    millions = trained[0].num_parameters() / 1e6
    description = PageService().describe(str(trained_run))
    assert description == f"{millions:.1f} million parameters, 1 + 1 layers, 2 + 2 heads"


def test_models_of_transformers_work_too(trained, tmp_path):
    tokenizer = trained[1]
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config)
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    service = PageService(max_tokens=40)
    assert service.describe(str(tmp_path)) == "0.0 million parameters"
    result = service.translate(str(tmp_path), SENTENCE, Search(2))
    assert len(result.hypotheses) == 2
    assert not result.has_layers
    assert result.attentions.cross.shape[:2] == (2, 2)


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
    service = PageService(max_tokens=40)
    assert service.attend(str(tmp_path), SENTENCE, [3, 4]).target_ids == [3, 4]
    with pytest.raises(ValueError, match="This translation is none of the model"):
        service.attend(str(tmp_path), SENTENCE, [len(tokenizer)])


# --- any text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  ", "\n\t\n", "\u2003"], ids=repr)
def test_a_blank_text_is_refused(ask, text):
    with pytest.raises(ValueError, match="There is no text: type a sentence"):
        ask(text)


def test_a_text_of_too_many_tokens_is_refused_with_their_number(ask, trained):
    text = "one " * 30
    count = len(trained[1](text).input_ids)
    with pytest.raises(ValueError, match=f"has {count} tokens; the limit is 13"):
        ask(text, max_tokens=13)


def test_a_text_beyond_the_tokenizers_limit_is_refused(ask, trained):
    assert trained[1].model_max_length == 40
    with pytest.raises(ValueError, match="the limit is 40"):
        ask("x " * 41, max_tokens=500)


def test_a_huge_text_is_refused_before_it_is_tokenized(ask, monkeypatch):
    monkeypatch.setattr(
        service_module, "load_translator", lambda _, **__: pytest.fail("was loaded")
    )
    with pytest.raises(ValueError, match="has 10,000,000 characters"):
        ask("x" * 10_000_000)


def test_line_ends_are_spaces(ask):
    assert ask("three\none\r\nfour").sentence == "three one four"


@pytest.mark.parametrize(
    "text",
    ["\ud800", "a\udfffb", "\0", "<b>{{1}}</b>", "</s><pad>", "שלום", "\u202e\u2066", "😀"],
    ids=ascii,
)
def test_any_text_gets_a_result(ask, text):
    result = ask(text)
    assert len(result.hypotheses) == 2
    result.sentence.encode("utf-8")


def test_an_error_of_a_model_is_reported_in_one_line(ask, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out\nof memory")

    monkeypatch.setattr(page_search, "best_translations", fail)
    with pytest.raises(ValueError, match=r"failed at this text: out of memory$"):
        ask(SENTENCE)


def test_a_long_message_is_cut():
    assert one_line(ValueError("x" * 1000)) == "x" * MAX_MESSAGE + "…"
    assert one_line(KeyError()) == "KeyError"
