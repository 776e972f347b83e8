"""What a caller may ask of `generate()`: rules on words, streams, ends, lengths, settings."""

import itertools
import shutil
import threading

import pytest
import torch
from lively import EOS, PAD, V, lively_model, row_of, sources, spoken
from torch.testing import assert_close
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    TextStreamer,
)
from transformers.generation.streamers import BaseStreamer

STEPS = 11
ENDLESS = {"suppress_tokens": [PAD, EOS]}
GREEDY_AND_BEAM = pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beam"])


@pytest.fixture
def model():
    return lively_model()


def greedy(model, batch, **extra):
    return model.generate(**batch, **{"num_beams": 1, "max_new_tokens": STEPS, **extra})


# --- rules on words ----------------------------------------------------------------------------


def greedy_by_hand(model, source, rule, steps=STEPS):
    """Always the likeliest word that the rule leaves, the whole sentence read anew each time."""
    found = [PAD]
    while len(found) <= steps and found[-1] != EOS:
        decoder_input_ids = torch.tensor([found])
        logits = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        scores = rule(found, logits[0, -1].detach().clone(), source["input_ids"][0].tolist())
        found.append(scores.argmax().item())
    return found


def without(scores, words):
    scores[list(words)] = float("-inf")
    return scores


def without_bad_words(found, scores, source):
    return without(scores, [8] if found[-1] != 10 else [8, 9])


def without_repeated_pairs(found, scores, source):
    pairs = set(itertools.pairwise(found))
    return without(scores, {word for word in range(V) if (found[-1], word) in pairs})


def without_repeated_source_words(found, scores, source):
    return without(scores, source)


def repetition_costs(found, scores, source):
    for word in set(found):
        scores[word] *= 2 if scores[word] < 0 else 1 / 2
    return scores


def words_of_the_source_gain(found, scores, source):
    for word in set(source):
        scores[word] *= 1 / 4 if scores[word] < 0 else 4
    return scores


def first_word_is_forced(found, scores, source):
    return scores if len(found) > 1 else without(scores, set(range(V)) - {13})


def last_word_is_forced(found, scores, source):
    return scores if len(found) < STEPS else without(scores, set(range(V)) - {EOS})


def no_end_before_the_ninth_word(found, scores, source):
    return scores if len(found) > 8 else without(scores, [EOS])


def one_word_is_favored(found, scores, source):
    scores[14] += 5
    scores[3] += 20 if found[-1] == 14 else 0
    return scores


def even_after_odd(found, scores, source):
    return without(scores, {word for word in range(V) if word % 2 == found[-1] % 2})


def suppressed(found, scores, source):
    return without(scores, [PAD, EOS, 9, 7] if len(found) > 1 else [PAD, EOS, 9, 7, 11, 12, 15])


class EvenAfterOdd(LogitsProcessor):
    def __call__(self, input_ids, scores):
        is_even = torch.arange(V) % 2 == input_ids[:, -1:] % 2
        return scores.masked_fill(is_even, float("-inf"))


RULES = {
    "bad words": ({"bad_words_ids": [[8], [10, 9]]}, without_bad_words),
    "repeated pairs": ({"no_repeat_ngram_size": 2}, without_repeated_pairs),
    "source words": ({"encoder_no_repeat_ngram_size": 1}, without_repeated_source_words),
    "repetition": ({"repetition_penalty": 2.0}, repetition_costs),
    "source gain": ({"encoder_repetition_penalty": 4.0}, words_of_the_source_gain),
    "forced first": ({"forced_bos_token_id": 13}, first_word_is_forced),
    "forced last": ({"forced_eos_token_id": EOS}, last_word_is_forced),
    "at least 8 new": ({"min_new_tokens": 8}, no_end_before_the_ninth_word),
    "at least 9 in all": ({"min_length": 9}, no_end_before_the_ninth_word),
    "bias": ({"sequence_bias": [[[14], 5.0], [[14, 3], 20.0]]}, one_word_is_favored),
    "allowed words": (
        {
            "prefix_allowed_tokens_fn": lambda _, found: [
                word for word in range(V) if word % 2 != found[-1].item() % 2
            ]
        },
        even_after_odd,
    ),
    "a rule of one's own": (
        {"logits_processor": LogitsProcessorList([EvenAfterOdd()])},
        even_after_odd,
    ),
    "suppressed": (
        {"suppress_tokens": [PAD, EOS, 9, 7], "begin_suppress_tokens": [11, 12, 15]},
        suppressed,
    ),
}


ONLY_WEIGHING = {"repetition", "source gain", "bias"}


@pytest.mark.parametrize("name", RULES)
def test_greedy_search_under_a_rule_is_the_one_worked_out_step_by_step(model, name):
    settings, rule = RULES[name]
    has_effect = 0
    for length in (2, 3, 5, 7, 11):
        source = sources(length)
        expected = greedy_by_hand(model, source, rule)
        assert spoken(greedy(model, source, **settings)[0]) == expected[1:]
        has_effect += expected != greedy_by_hand(model, source, lambda found, scores, _: scores)
    assert has_effect


@pytest.mark.parametrize("name", sorted(RULES.keys() - ONLY_WEIGHING))
def test_no_beam_of_a_padded_batch_has_a_token_that_a_rule_forbids(model, name):
    settings, rule = RULES[name]
    batch = sources(3, 7)
    found = model.generate(
        **batch, num_beams=4, num_return_sequences=3, max_new_tokens=STEPS, **settings
    )
    for index, sequence in enumerate(found):
        source = row_of(batch, index // 3)["input_ids"][0].tolist()
        said = [PAD, *spoken(sequence)]
        for place in range(1, len(said)):
            scores = rule(said[:place], torch.zeros(V), source)
            assert scores[said[place]] == 0


@GREEDY_AND_BEAM
@pytest.mark.parametrize("end_ids", [EOS, [EOS]], ids=str)
def test_a_forced_end_comes_at_the_limit_of_each_sentence_of_its_own(model, num_beams, end_ids):
    class NeverAtOnce(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores[:, EOS] -= 1000
            return scores

    model.generation_config.max_tokens_beyond_source = 2
    found = model.generate(
        **sources(3, 7, 5),
        num_beams=num_beams,
        forced_eos_token_id=end_ids,
        logits_processor=[NeverAtOnce()],
    )
    assert [row.tolist().index(EOS) for row in found] == [5, 9, 7]


# --- streams -----------------------------------------------------------------------------------


class Listener(BaseStreamer):
    def __init__(self):
        self.heard, self.ends = [], 0

    def put(self, value):
        self.heard.append(value.tolist())

    def end(self):
        self.ends += 1


def test_a_streamer_gets_the_prompt_and_then_each_token(model):
    source, listener = sources(5), Listener()
    prompt = torch.tensor([[PAD, 5]])
    found = greedy(model, source, streamer=listener, decoder_input_ids=prompt)
    assert listener.heard == [[[PAD, 5]], *([word] for word in found[0, 2:].tolist())]
    assert listener.ends == 1


@pytest.fixture
def talker(tiny_tokenizer):
    """A model over the words of the tokenizer."""
    return lively_model(vocab_size=len(tiny_tokenizer))


@pytest.fixture
def plain_words(tiny_tokenizer):
    """Says only words of letters and blanks: half a character would not print until the next."""
    texts = tiny_tokenizer.batch_decode([[word] for word in range(len(tiny_tokenizer))])
    words = [word for word, text in enumerate(texts) if not text.isascii() or text == "</s>"]
    return {"suppress_tokens": words}


def test_a_text_streamer_prints_the_sentence(talker, tiny_tokenizer, plain_words, capsys):
    source = tiny_tokenizer("ein Haus am See", return_tensors="pt")
    streamer = TextStreamer(tiny_tokenizer, skip_special_tokens=True)
    found = greedy(talker, source, streamer=streamer, **plain_words)
    text = tiny_tokenizer.decode(found[0], skip_special_tokens=True)
    assert len(text) > 3
    assert capsys.readouterr().out == text + "\n"


def test_an_iterator_over_the_text_can_be_read_from_another_thread(
    talker, tiny_tokenizer, plain_words
):
    source = tiny_tokenizer("ein Haus am See", return_tensors="pt")
    found = greedy(talker, source, **plain_words)
    streamer = TextIteratorStreamer(tiny_tokenizer, timeout=30, skip_special_tokens=True)
    settings = {"streamer": streamer, **plain_words}
    thread = threading.Thread(target=greedy, args=(talker, source), kwargs=settings)
    thread.start()
    pieces = list(streamer)
    thread.join(timeout=30)
    assert "".join(pieces) == tiny_tokenizer.decode(found[0], skip_special_tokens=True)


def test_a_stream_of_beams_is_refused(model):
    with pytest.raises(ValueError, match="`streamer` cannot be used with beam search"):
        model.generate(**sources(5), num_beams=3, streamer=Listener())


# --- ends --------------------------------------------------------------------------------------


def test_a_sentence_ends_with_the_first_string_to_stop_at(talker, tiny_tokenizer, plain_words):
    source = tiny_tokenizer("ein Haus am See", return_tensors="pt")
    whole = greedy(talker, source, **plain_words)[0].tolist()
    stop = tiny_tokenizer.decode(whole[3:5])
    found = greedy(talker, source, **plain_words, stop_strings=stop, tokenizer=tiny_tokenizer)
    found = found[0].tolist()
    assert found == whole[: len(found)]
    assert stop in tiny_tokenizer.decode(found)
    assert stop not in tiny_tokenizer.decode(found[:-1])
    assert len(found) < len(whole)


class EndsWith(StoppingCriteria):
    def __init__(self, word):
        self.word = word

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.word


@pytest.mark.parametrize("column", [1, 2, 3])
def test_each_sentence_ends_where_a_criterion_of_ones_own_says(model, column):
    batch = sources(3, 7, 5)
    whole = greedy(model, batch, **ENDLESS)
    word = whole[1, column].item()
    criteria = StoppingCriteriaList([EndsWith(word)])
    found = greedy(model, batch, stopping_criteria=criteria, **ENDLESS)
    for row in range(3):
        expected = whole[row].tolist()
        if word in expected:
            expected = expected[: expected.index(word) + 1]
        actual = found[row].tolist()
        assert actual[: len(expected)] == expected[: len(actual)]
        assert set(actual[len(expected) :]) <= {PAD}
    assert found.shape[1] <= whole.shape[1]


def test_a_criterion_of_ones_own_does_not_lift_the_papers_limit(model):
    criteria = StoppingCriteriaList([EndsWith(V)])  # no such word
    found = model.generate(**sources(3, 5), num_beams=1, stopping_criteria=criteria, **ENDLESS)
    assert [len([word for word in row if word > EOS]) for row in found.tolist()] == [53, 55]


# --- lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_new_tokens": 3, "max_length": 9}, 3),
        ({"max_new_tokens": 9, "max_length": 3}, 9),
        ({"max_length": 9}, 7),
        ({"max_length": 3}, 1),
    ],
    ids=str,
)
@GREEDY_AND_BEAM
def test_new_tokens_go_before_the_whole_length_which_counts_the_prompt(
    model, num_beams, limits, words
):
    prompt = torch.tensor([[PAD, 5]])
    found = model.generate(
        **sources(5), decoder_input_ids=prompt, num_beams=num_beams, **limits, **ENDLESS
    )
    assert found.shape == (1, 2 + words)


def test_a_max_length_of_20_holds_unless_seq2seq_trainer_wrote_it(model, tmp_path):
    def longest(model):
        return model.generate(**sources(5, 3), **ENDLESS).shape[1]

    config = model.generation_config
    config.max_length = 20
    assert longest(model) == 20
    config.max_length = None
    # what an evaluation of the Trainer does
    config.update(**config._get_default_generation_params(), defaults_only=True)
    GenerationConfig(**config.to_dict()).save_pretrained(tmp_path / "theirs")
    assert config.max_length == 20
    assert longest(model) == 56
    config.update(**config._get_default_generation_params(), defaults_only=True)
    model.save_pretrained(tmp_path / "saved")
    assert GenerationConfig.from_pretrained(tmp_path / "saved").max_length is None
    # a folder that was saved without this class
    shutil.copy(tmp_path / "theirs" / "generation_config.json", tmp_path / "saved")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    assert loaded.generation_config.max_length is None
    assert longest(loaded) == 56


def test_a_sentence_has_at_least_one_token_alone_as_in_a_batch(model):
    batch = sources(2, 9)
    together = model.generate(**batch, max_tokens_beyond_source=-5)
    alone = model.generate(**row_of(batch, 0), max_tokens_beyond_source=-5)
    assert alone.shape == (1, 2)
    assert together[0, 1] == alone[0, 1]


class Shy(LogitsProcessor):
    """Would end each sentence at once."""

    def __call__(self, input_ids, scores):
        scores[:, EOS] += 100
        return scores


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, 1),
        ({"min_new_tokens": 5}, 6),
        ({"min_length": 5}, 4),  # the prompt counts, and the start token is part of it
        ({"min_new_tokens": 5, "min_length": 3}, 6),
        ({"min_new_tokens": 2, "min_length": 7}, 3),
    ],
    ids=str,
)
def test_a_min_length_delays_the_end_token(model, limits, words):
    prompt = torch.tensor([[PAD, 5]])
    found = greedy(model, sources(5), decoder_input_ids=prompt, **limits, logits_processor=[Shy()])
    said = spoken(found[0], 2)
    assert said[-1] == EOS
    assert len(said) == words


def test_a_min_length_above_max_length_is_warned_about_and_max_length_holds(model):
    with pytest.warns(UserWarning, match="Unfeasible length constraints"):
        found = greedy(model, sources(5), max_new_tokens=3, min_new_tokens=5)
    assert found.shape == (1, 4)


@pytest.mark.parametrize("limit", [0, -1])
def test_max_new_tokens_of_zero_is_refused(model, limit):
    with pytest.raises(ValueError, match=f"must be greater than 0, but is {limit}"):
        greedy(model, sources(5), max_new_tokens=limit)


# --- settings from elsewhere -------------------------------------------------------------------


def test_settings_from_disk_decode_as_the_same_settings_by_name(model, tmp_path):
    settings = {"num_beams": 3, "max_new_tokens": 7, "no_repeat_ngram_size": 2}
    GenerationConfig(**settings).save_pretrained(tmp_path)
    loaded = GenerationConfig.from_pretrained(tmp_path)
    batch = sources(3, 7, 5)
    expected = model.generate(**batch, **settings)
    assert torch.equal(model.generate(**batch, generation_config=loaded), expected)
    assert not torch.equal(model.generate(**batch, max_new_tokens=7), expected)


def test_what_settings_of_ones_own_leave_out_is_the_models(model):
    batch = sources(3, 5)
    found = model.generate(**batch, generation_config=GenerationConfig(num_beams=1, **ENDLESS))
    assert [len([word for word in row if word > EOS]) for row in found.tolist()] == [53, 55]
    config = GenerationConfig(max_new_tokens=7, output_scores=True, return_dict_in_generate=True)
    scores = model.generate(**batch, generation_config=config).sequences_scores
    by_name = {"output_scores": True, "return_dict_in_generate": True, "num_beams": 4}
    expected = model.generate(**batch, max_new_tokens=7, **by_name).sequences_scores
    assert_close(scores, expected, rtol=0, atol=0)


# --- text in, text out -------------------------------------------------------------------------


@GREEDY_AND_BEAM
@pytest.mark.parametrize("side", ["right", "left"])
def test_sentences_loaded_and_decoded_by_auto_classes_are_one_by_one_the_same(
    talker, tiny_tokenizer, tmp_path, num_beams, side
):
    talker.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, padding_side=side)
    sentences = ["ein Haus am See", "ein großer Baum steht dort", "ja"]

    def translations(sentences):
        batch = tokenizer(sentences, padding=True, return_tensors="pt")
        found = model.generate(**batch, num_beams=num_beams)
        return tokenizer.batch_decode(found, skip_special_tokens=True)

    together = translations(sentences)
    assert together == [translations([sentence])[0] for sentence in sentences]
    assert len(set(together)) == 3
