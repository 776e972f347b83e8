"""Translator and translate: one translation per sentence, in order, whatever the batches."""

import itertools
import logging
import pickle

import pytest
import small_run
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)

from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import Translator, translate

PAIRS = small_run.digit_pairs()
SOURCES = [source for source, _ in PAIRS[:19]]


# --- sentences ---------------------------------------------------------------------------------


def test_the_trained_model_translates_its_training_pairs(trained):
    # the other tests need a model with varied output
    assert translate(*trained, SOURCES) == [target for _, target in PAIRS[:19]]


def test_a_model_of_two_configs_translates(trained, tmp_path):
    tokenizer = trained[1]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sides = [BertConfig(vocab_size=size, **sizes) for size in (len(tokenizer), len(tokenizer) - 1)]
    ids = {"decoder_start_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(*sides, **ids))
    model.generation_config.max_new_tokens = 2
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert len(list(Translator(tmp_path).translate(SOURCES[:2]))) == 2
    last = len(tokenizer) - 2
    with pytest.raises(ValueError, match=f"={last + 1}: the vocabulary ends at {last}"):
        Translator(tmp_path, suppress_tokens=[last + 1])
    with pytest.raises(ValueError, match=r"^max_batch_memory=9 needs .*: limit tokens_per_batch"):
        Translator(tmp_path, max_batch_memory=9)


@pytest.fixture(scope="module")
def one_by_one(trained):
    """Each translation by a call of its own."""
    return [translate(*trained, [sentence])[0] for sentence in SOURCES]


@pytest.mark.parametrize("budget", [1, 17, 40, 4096])
def test_tokens_per_batch_does_not_change_translations(trained, one_by_one, budget):
    assert len(set(one_by_one)) > 10
    assert translate(*trained, SOURCES, tokens_per_batch=budget) == one_by_one


def test_translations_keep_the_order_of_the_sentences(trained):
    forward = translate(*trained, SOURCES)
    reverse = translate(*trained, SOURCES[::-1])
    assert forward == reverse[::-1]


def test_batches_keep_tokens_per_batch_and_have_every_sentence_once(trained, monkeypatch):
    shapes, generate = [], trained[0].generate

    def record(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return generate(**inputs)

    monkeypatch.setattr(trained[0], "generate", record)
    translate(*trained, SOURCES, tokens_per_batch=40)
    assert sum(rows for rows, _ in shapes) == len(SOURCES)
    assert all(rows * length <= 40 for rows, length in shapes)
    assert len(shapes) > 2
    assert [length for _, length in shapes] == sorted((s for _, s in shapes), reverse=True)


def test_batches_keep_their_memory(trained, monkeypatch):
    shapes, generate = [], trained[0].generate

    def record(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return generate(**inputs)

    monkeypatch.setattr(trained[0], "generate", record)
    engine = TorchEngine(*trained, num_beams=2)
    longest = max(len(trained[1](sentence).input_ids) for sentence in SOURCES)
    limit = 3.5 * engine.sentence_bytes(longest)
    assert all(Translator(engine, max_batch_memory=limit / 2**20).translate(SOURCES))
    assert sum(rows for rows, _ in shapes) == len(SOURCES)
    assert shapes[0][0] == 3
    assert all(rows * engine.sentence_bytes(length) <= limit for rows, length in shapes)


def test_a_limit_of_memory_below_one_sentence_is_refused(trained):
    engine = TorchEngine(*trained, num_beams=2)
    message = r"^max_batch_memory=0.01: a sentence of \d+ tokens may need 1 MiB: give 1 or more"
    with pytest.raises(ValueError, match=message):
        list(Translator(engine, max_batch_memory=0.01).translate(SOURCES))


@pytest.mark.parametrize("beams", [1, 4])
def test_the_bound_of_memory_is_above_what_a_search_allocates(trained, beams):
    model, tokenizer = trained
    rows = [tokenizer(sentence).input_ids for sentence in SOURCES]
    bound = TorchEngine(*trained, num_beams=beams).sentence_bytes(max(map(len, rows)))
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    with torch.profiler.profile(profile_memory=True) as profile, torch.inference_mode():
        model.generate(**batch, num_beams=beams)
    events = [event for event in profile.events() if event.name == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.time_range.start):
        now += event.cpu_memory_usage
        most = max(most, now)
    assert 0 < most < bound * len(rows)


@pytest.mark.parametrize("blank", ["", " ", "\t", "\u3000"], ids=repr)
def test_a_blank_sentence_translates_to_an_empty_one(trained, blank):
    alone = translate(*trained, SOURCES[:2])
    assert translate(*trained, [blank, SOURCES[0], blank, SOURCES[1]]) == [
        "",
        alone[0],
        "",
        alone[1],
    ]
    assert translate(*trained, [blank] * 3) == [""] * 3


def test_no_sentences_give_no_translations(trained):
    assert translate(*trained, []) == []


def test_keyword_arguments_reach_generate(trained):
    greedy = translate(*trained, SOURCES, num_beams=1, max_new_tokens=2)
    tokens = [len(trained[1](text).input_ids) - 1 for text in greedy]
    assert max(tokens) <= 2


def test_translate_leaves_no_gradients_and_no_training_mode(trained):
    translate(*trained, SOURCES[:3])
    assert not trained[0].training
    assert all(weight.grad is None for weight in trained[0].parameters())


@pytest.mark.parametrize("sentence", SOURCES[:5])
def test_plain_transformers_give_the_same_translation(trained, trained_run, sentence):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained_run).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained_run)
    with torch.no_grad():
        ids = model.generate(**tokenizer([sentence], return_tensors="pt"))
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == translate(*trained, [sentence])


def test_plain_transformers_give_the_same_translations_for_a_padded_batch(trained):
    model, tokenizer = trained
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert texts == translate(model, tokenizer, SOURCES)


@pytest.mark.parametrize("where", ["call", "generation config"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_of_several_returned_sequences_the_best_is_the_translation(
    trained, monkeypatch, where, num_beams
):
    expected = translate(*trained, SOURCES, num_beams=num_beams)
    options = {"num_return_sequences": 3, "return_dict_in_generate": True}
    if where == "generation config":
        for name, value in options.items():
            monkeypatch.setattr(trained[0].generation_config, name, value)
        options = {}
    assert translate(*trained, SOURCES, num_beams=num_beams, **options) == expected


def test_a_start_token_that_is_not_special_is_not_in_the_translation(trained, monkeypatch):
    model, tokenizer = trained
    start = tokenizer.convert_tokens_to_ids("x")
    assert start not in tokenizer.all_special_ids
    monkeypatch.setattr(model.generation_config, "decoder_start_token_id", start)
    generated = model.generate(**tokenizer(SOURCES[:1], return_tensors="pt"))
    assert generated[0, 0] == start
    expected = tokenizer.decode(generated[0, 1:], skip_special_tokens=True)
    assert translate(model, tokenizer, SOURCES[:1]) == [expected]


# --- sentences too long ------------------------------------------------------------------------


LONG = "q" * 61  # 61 tokens and the end token; the tokenizer's limit is 40


def test_a_too_long_sentence_is_cut_with_a_warning_that_names_its_line(trained, caplog):
    with caplog.at_level(logging.WARNING):
        found = translate(*trained, [SOURCES[0], "", LONG, SOURCES[1]])
    assert [record.getMessage() for record in caplog.records] == [
        "line 3 has 62 tokens; only the first 40 are used"
    ]
    assert found[2] == translate(*trained, ["q" * 39])[0]
    assert found[3] == translate(*trained, SOURCES[1:2])[0]


def test_a_sentence_of_the_maximum_length_is_not_cut(trained, caplog):
    with caplog.at_level(logging.WARNING):
        translate(*trained, ["q" * 39])
    assert not caplog.records


def test_the_warning_counts_lines_across_windows(trained, caplog):
    translator = Translator(TorchEngine(*trained), window=3)
    with caplog.at_level(logging.WARNING):
        translations = list(translator.translate(["one"] * 7 + [LONG]))
    assert [r.getMessage() for r in caplog.records] == [
        "line 8 has 62 tokens; only the first 40 are used"
    ]
    assert len(translations) == 8


def test_translations_are_yielded_before_the_input_ends(trained):
    def endless():
        while True:
            yield "one two"

    translator = Translator(TorchEngine(*trained), window=4)
    assert len(list(itertools.islice(translator.translate(endless()), 9))) == 9


# --- refused -----------------------------------------------------------------------------------


def test_translations_go_on_after_another_list_was_asked_for(trained):
    translator = Translator(TorchEngine(*trained), window=1)
    expected = list(translator.translate(["one", "two three"]))
    found = translator.translate(["one", "two three"])
    first = next(found)
    ((best, _),) = translator.n_best(["four"], 2)
    assert [first, *found] == expected
    assert best.text == translate(*trained, ["four"])[0]


def test_a_folder_without_a_model_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json\): give one that training wrote"):
        load_translator(str(tmp_path))
    (checkpoint := tmp_path / "checkpoint-50").mkdir()
    with pytest.raises(ValueError, match=r"give its run, or make a model of .* hf-vanilla average"):
        load_translator(str(checkpoint))


def test_a_translator_of_an_engine_takes_no_search_options(trained):
    with pytest.raises(ValueError, match="num_beams: a Translator of an engine takes no options"):
        Translator(TorchEngine(*trained), num_beams=2)


def test_a_translator_of_a_loaded_model_is_refused_with_a_remedy(trained):
    with pytest.raises(ValueError, match=r"neither a folder nor an engine: .* call hf_vanilla\.tr"):
        Translator(trained[0])


def test_a_translator_is_not_pickled(trained):
    with pytest.raises(ValueError, match="cannot be copied to another process: make one there"):
        pickle.dumps(Translator(TorchEngine(*trained)))


@pytest.mark.parametrize("sentences", [[["four"], ["two"]], [{"text": "four"}], [None]])
def test_a_list_without_any_text_is_refused(trained, sentences):
    with pytest.raises(ValueError, match="is no text: give a list of sentences"):
        list(Translator(TorchEngine(*trained)).translate(sentences))


def test_an_unknown_option_is_refused_before_the_first_sentence(trained_run, trained):
    for make in (lambda: Translator(trained_run, batch_size=64, top_q=1),
                 lambda: TorchEngine(*trained, batch_size=64, top_q=1)):  # fmt: skip
        with pytest.raises(ValueError, match=r"batch_size, top_q: no option of generate"):
            make()


@pytest.mark.parametrize("budget", [0, 1e4])
def test_a_budget_that_is_no_whole_number_above_0_is_refused(trained, budget):
    model, tokenizer = trained
    with pytest.raises(ValueError, match=f"tokens_per_batch={budget}: give a positive whole numb"):
        translate(model, tokenizer, ["ein Haus"], tokens_per_batch=budget)


def test_a_window_below_1_is_refused(trained):
    with pytest.raises(ValueError, match="window=0: give a positive number"):
        Translator(TorchEngine(*trained), window=0)
