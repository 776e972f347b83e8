"""The service: any text, any folder, several visitors at once."""

import sys

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from hf_vanilla.text import page_models as text_models
from hf_vanilla.text import page_search as text_search
from hf_vanilla.text import page_service as service_module
from hf_vanilla.text.attentions import attentions
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.page_input import MAX_MESSAGE, one_line
from hf_vanilla.text.page_search import Lengths, Sampling, Search
from hf_vanilla.text.page_service import Service
from hf_vanilla.text.terminology import Terminology
from hf_vanilla.text.text_translator import TextTranslator
from hf_vanilla.text.translator import Translator

SENTENCE = "three one four"
DIGITS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "null"]
TEXT = " Two.  Five six. Eight seven. "


@pytest.fixture
def ask(trained_run):
    def ask(text, name=trained_run, num_beams=2, max_tokens=40):
        return Service(max_tokens=max_tokens).translate(str(name), text, Search(num_beams))

    return ask


# --- results -----------------------------------------------------------------------------------


def test_a_result_has_the_n_best_list_and_the_attentions_of_the_best(ask, trained):
    result = ask(SENTENCE)
    expected = best_translations(*trained, SENTENCE, num_beams=2)
    assert result.hypotheses == expected
    expected_weights = attentions(*trained, SENTENCE, translation=expected[0].ids)
    assert torch.equal(result.attentions.cross, expected_weights.cross)
    assert result.attentions.target == expected_weights.target


def test_translations_contain_the_phrases_asked_for(trained_run):
    service = Service(max_tokens=40)
    free = service.translate(str(trained_run), SENTENCE, Search(3))
    found = service.translate(str(trained_run), SENTENCE, Search(3, ["neun", "acht"]))
    assert not any("neun" in hypothesis.text for hypothesis in free.hypotheses)
    assert found.hypotheses
    for hypothesis in found.hypotheses:
        assert {"neun", "acht"} <= set(hypothesis.text.split())
    ranked = [c for step in found.steps for c in step if c.rank >= 0]
    assert sorted(c.rank for c in ranked) == list(range(len(found.hypotheses)))
    assert all(list(c.ids) == found.hypotheses[c.rank].ids for c in ranked)


def test_terms_are_those_of_the_sentence_as_by_the_command(trained_run, trained):
    terms = [("three", "neun"), ("two", "acht"), ("one", "eins")]
    search = Search(3, terms=terms)
    service, name = Service(max_tokens=40), str(trained_run)
    free = service.translate(name, SENTENCE, Search(3)).hypotheses
    found = service.translate(name, SENTENCE, search).hypotheses
    texts = TextTranslator(
        Translator(TorchEngine(*trained, num_beams=3)), terminology=Terminology(terms)
    )
    assert [found[0].text] == list(texts.translate([SENTENCE]))
    assert not any("neun" in one.text for one in free)
    assert all("neun" in one.text and "eins" in one.text for one in found)
    assert not any("acht" in one.text for one in found)
    assert service.translate(name, "six", search).hypotheses == (
        service.translate(name, "six", Search(3)).hypotheses
    )


def test_terms_are_looked_for_in_each_sentence_of_a_text_and_without_its_markup(trained_run):
    search = Search(3, terms=[("five", "neun"), ("six seven", "acht")], keep_markup=True)
    text = "Two. Five <b>six</b> seven."
    results = Service(max_tokens=40).translate_sentences(
        str(trained_run), text, search, language="en"
    )
    first, second = ([one.text for one in result.hypotheses] for result in results)
    assert not any("neun" in one or "acht" in one for one in first)
    assert all("neun" in one and "acht" in one for one in second)


@pytest.mark.parametrize(
    ("phrases", "num_beams", "problem"),
    [
        (["neun"], 1, "Phrases need a search with 2 or more beams"),
        (["neun"] * 9, 2, "There are 9 phrases; the limit is 8"),
        (["neun " * 40], 2, "'neun neun neun neun neun neun neun neun ' has more than 32 tokens"),
        (["neun" * 10**6], 2, "has more than 32 tokens: shorten it"),
        ([f"neun {n} acht {n} sieben" for n in DIGITS], 2, "ask for less"),
    ],
)
def test_phrases_that_no_search_can_have_are_refused(trained_run, phrases, num_beams, problem):
    service = Service(max_tokens=40)
    with pytest.raises(ValueError, match=problem):
        service.translate(str(trained_run), "two", Search(num_beams, phrases))


@pytest.fixture
def draw(trained_run):
    def draw(seed, temperature=5.0, **changes):
        sampling = Sampling(temperature=temperature, seed=seed, **changes)
        return Service(max_tokens=40).translate(
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
    found = Service(max_tokens=40).translate(str(trained_run), "two", search).hypotheses
    assert all(6 <= len(hypothesis.ids) <= 8 for hypothesis in found)
    search = Search(2, sampling=sampling, lengths=Lengths(max_new_tokens=1))
    found = Service(max_tokens=40).translate(str(trained_run), SENTENCE, search).hypotheses
    assert {len(hypothesis.ids) for hypothesis in found} == {1}


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_a_length_that_the_model_does_not_reach_is_refused(trained_run):
    search = Search(2, lengths=Lengths(min_new_tokens=400))
    problem = r"limit for this sentence is \d+ tokens, and the minimum length is 400: lower it"
    with pytest.raises(ValueError, match=problem):
        Service(max_tokens=40).translate(str(trained_run), "two", search)
    search = Search(2, lengths=Lengths(400, 410))
    (first, _) = Service(max_tokens=40).translate(str(trained_run), "two", search).hypotheses
    assert len(first.ids) > 400
    Service(max_tokens=40).attend(str(trained_run), "two", first.ids)  # is a translation of it


def test_phrases_longer_than_the_maximum_length_are_refused(trained_run):
    search = Search(2, ["neun acht sieben"], lengths=Lengths(max_new_tokens=2))
    with pytest.raises(ValueError, match="ask for less"):
        Service(max_tokens=40).translate(str(trained_run), "two", search)


@pytest.mark.parametrize("text", ["<b>three one</b> four {unit}", "three 17 four", SENTENCE])
def test_markup_is_carried_over_as_by_the_command(trained_run, trained, text):
    search = Search(3, keep_markup=True)
    result = Service(max_tokens=40).translate(str(trained_run), text, search)
    texts = TextTranslator(Translator(TorchEngine(*trained, num_beams=3)), keep_markup=True)
    assert result.hypotheses[0].text == next(texts.translate([text]))
    plain = Service(max_tokens=40).translate(str(trained_run), result.sentence, Search(3))
    assert [one.ids for one in result.hypotheses] == [one.ids for one in plain.hypotheses]
    assert result.text == text
    assert "<b>" not in result.sentence
    for hypothesis in result.hypotheses:
        assert ("<b>" in hypothesis.text) == ("<b>" in text)


def test_a_text_without_words_is_refused(trained_run):
    with pytest.raises(ValueError, match=r"There are no words in '<br/> {x}': type a sentence"):
        Service().translate(str(trained_run), "<br/> {x}", Search(2, keep_markup=True))


def test_sentences_of_a_text_are_translated_as_alone_and_joined_as_the_command_does(
    trained_run, trained
):
    service, name = Service(max_tokens=40), str(trained_run)
    results = service.translate_sentences(name, TEXT, Search(2), language="en")
    assert [(one.sentence, one.separator) for one in results] == [
        ("Two.", "  "),
        ("Five six.", " "),
        ("Eight seven.", ""),
    ]
    for found in results:
        alone = service.translate(name, found.sentence, Search(2))
        assert found.hypotheses == alone.hypotheses
        assert found.steps == alone.steps
        assert torch.equal(found.attentions.cross, alone.attentions.cross)
    texts = TextTranslator(Translator(TorchEngine(*trained, num_beams=2)), split_sentences="en")
    joined = "".join(one.hypotheses[0].text + one.separator for one in results)
    assert [joined] == list(texts.translate([TEXT]))


@pytest.mark.parametrize(
    ("text", "search", "language", "problem"),
    [
        (TEXT, Search(2), "english", "split_sentences='english': give a language such as en"),
        (TEXT, Search(2), "", "split_sentences='': give a language such as en"),
        ("Two. " * 21, Search(2), "en", "has 21 sentences; the limit is 20: give fewer"),
        (TEXT, Search(2, ["neun"]), "en", "Phrases are of one sentence, and the text has 3"),
        ("Two. " + "one " * 50, Search(2), "en", r"Sentence 2 has \d+ tokens; the limit is 40"),
        (" ", Search(2), "en", "There is no text"),
    ],
    ids=["language", "no language", "sentences", "phrases", "tokens", "blank"],
)
def test_texts_that_cannot_be_translated_in_sentences_are_refused(
    trained_run, text, search, language, problem
):
    with pytest.raises(ValueError, match=problem):
        Service(max_tokens=40).translate_sentences(
            str(trained_run), text, search, language=language
        )


def test_without_sentencex_the_command_that_installs_it_is_named(trained_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ValueError, match=r"sentences are split by sentencex: pip install .*text"):
        Service().translate_sentences(str(trained_run), TEXT, Search(2), language="en")


def test_all_sentences_together_have_one_time_limit(trained_run, monkeypatch):
    clock, limits, run = [0.0], [], Search.run

    def ten_seconds(*arguments, max_seconds, **others):
        clock[0] += 10
        limits.append(max_seconds)
        return run(*arguments, max_seconds=max_seconds, **others)

    monkeypatch.setattr(Search, "run", ten_seconds)
    monkeypatch.setattr(service_module.time, "monotonic", lambda: clock[0])
    service, name = Service(max_tokens=40, max_seconds=25), str(trained_run)
    with pytest.raises(ValueError, match="stopped after 25 seconds: give a shorter text"):
        service.translate_sentences(name, TEXT, Search(2), language="en")
    assert limits == [25, 15, 5]


def test_attend_computes_the_attentions_of_another_hypothesis(trained_run, trained):
    service = Service(max_tokens=40)
    result = service.translate(str(trained_run), SENTENCE, Search(3))
    ids = result.hypotheses[1].ids
    found = service.attend(str(trained_run), SENTENCE, ids)
    assert torch.equal(found.decoder, attentions(*trained, SENTENCE, translation=ids).decoder)


@pytest.mark.parametrize(
    "ids",
    [[], [-1], [10**9], ["1"], [True], [1] * 5000, "12", None, [[1]]],
    ids=lambda v: str(v)[:9],
)
def test_ids_that_are_no_translation_are_refused(trained_run, ids):
    with pytest.raises(ValueError, match="This translation is none of the model"):
        Service(max_tokens=40).attend(str(trained_run), SENTENCE, ids)


def test_a_search_that_takes_too_long_is_stopped_and_reported(trained_run):
    with pytest.raises(ValueError, match=r"stopped after 0 seconds: give a shorter text"):
        Service(max_seconds=0).translate(str(trained_run), SENTENCE, Search(2))


def test_too_many_visitors_at_once_are_refused(trained_run, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_VISITORS", 1)
    service = Service()
    with service._turn(), pytest.raises(ValueError, match="Too many visitors wait"):
        service.describe(str(trained_run))
    assert service.describe(str(trained_run))


def test_a_model_is_described_in_one_line(trained_run, trained):
    millions = trained[0].num_parameters() / 1e6
    description = Service().describe(str(trained_run))
    assert description == f"{millions:.1f} million parameters, 1 + 1 layers, 2 + 2 heads"
    assert Service().num_beams(str(trained_run)) == trained[0].generation_config.num_beams


def test_models_of_transformers_work_too(trained, tmp_path):
    tokenizer = trained[1]
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config)
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    service = Service(max_tokens=40)
    assert service.describe(str(tmp_path)) == "0.0 million parameters"
    assert service.num_beams(str(tmp_path)) == 1
    result = service.translate(str(tmp_path), SENTENCE, Search(2))
    assert len(result.hypotheses) == 2
    assert not result.has_layers
    with pytest.raises(ValueError, match="The search of this model takes no phrases"):
        service.translate(str(tmp_path), SENTENCE, Search(2, ["neun"]))
    assert result.attentions.cross.shape[:2] == (2, 2)


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
    monkeypatch.setattr(text_models, "load_translator", lambda _, **__: pytest.fail("was loaded"))
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

    monkeypatch.setattr(text_search, "best_translations", fail)
    with pytest.raises(ValueError, match=r"failed at this text: out of memory$"):
        ask(SENTENCE)


def test_a_long_message_is_cut():
    assert one_line(ValueError("x" * 1000)) == "x" * MAX_MESSAGE + "…"
    assert one_line(KeyError()) == "KeyError"
