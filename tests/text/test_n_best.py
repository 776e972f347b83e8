"""The n-best list: the hypotheses of the search, with scores computed a second way."""

import json

import pytest
import torch

from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.text.n_best import best_translations, log_probs_of_pairs
from hf_vanilla.text.translator import Translator

SENTENCE = "three one four"


def score_by_hand(model, tokenizer, ids):
    """Log-probability of every token given those before it, over Wu et al.'s penalty."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs, labels=torch.tensor([ids])).logits[0]
    log_probs = logits.log_softmax(-1)
    total = sum(log_probs[i, token].item() for i, token in enumerate(ids))
    return total / ((5 + len(ids)) / 6) ** 0.6


@pytest.mark.parametrize("num_beams", [1, 2, 5])
def test_a_score_is_the_log_probability_over_the_length_penalty(trained, num_beams):
    found = best_translations(*trained, SENTENCE, num_beams=num_beams)
    assert len(found) == num_beams
    expected = [score_by_hand(*trained, one.ids) for one in found]
    # token by token against the whole sentence at once: float32 sums of other orders
    assert [one.score for one in found] == pytest.approx(expected, abs=1e-4)


def test_hypotheses_differ_and_are_sorted_by_score(trained):
    found = best_translations(*trained, SENTENCE, num_beams=4)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({tuple(one.ids) for one in found}) == 4


def test_the_first_hypothesis_is_the_output_of_generate(trained):
    model, tokenizer = trained
    beams = model.generation_config.num_beams
    generated = model.generate(**tokenizer(SENTENCE, return_tensors="pt"))[0, 1:].tolist()
    first = best_translations(model, tokenizer, SENTENCE, num_beams=beams)[0]
    assert first.ids == generated
    assert first.text == tokenizer.decode(generated, skip_special_tokens=True)


def test_a_shorter_hypothesis_has_no_padding(trained):
    model, tokenizer = trained
    found = best_translations(model, tokenizer, SENTENCE, num_beams=5)
    assert len({len(one.ids) for one in found}) > 1  # so that some were padded
    for one in found:
        assert one.ids.index(tokenizer.eos_token_id) == len(one.ids) - 1
        assert one.text == tokenizer.decode(one.ids[:-1])


def test_do_sample_in_the_generation_config_does_not_change_the_list(trained, monkeypatch):
    model = trained[0]
    expected = best_translations(*trained, SENTENCE, num_beams=3)
    monkeypatch.setattr(model.generation_config, "do_sample", True)
    assert best_translations(*trained, SENTENCE, num_beams=3) == expected


def test_the_lists_of_a_batch_equal_those_of_single_sentences(trained):
    sentences = [SENTENCE, "", "two", "five six"]
    engine = TorchEngine(*trained, num_beams=3)
    found = list(Translator(engine).n_best(sentences, 3))
    assert found[1] == []
    for sentence, hypotheses in zip(sentences, found, strict=True):
        if sentence:
            expected = best_translations(*trained, sentence, num_beams=3)
            assert [one.ids for one in hypotheses] == [one.ids for one in expected]
            scores = [one.score for one in expected]
            # a padded batch against one sentence: float32 sums of other orders
            assert [one.score for one in hypotheses] == pytest.approx(scores, abs=1e-4)


def test_hypotheses_that_do_not_exist_are_not_in_the_list(trained):
    end = trained[1].eos_token_id
    changes = {"num_beams": 4, "forced_eos_token_id": end, "max_new_tokens": 1}
    lists = TorchEngine(*trained, **changes).n_best_rows(trained[1](["one", "two"]).input_ids, 4)
    assert [[one.ids for one in found] for found in lists] == [[[end]], [[end]]]
    assert all(one.score > -100 for found in lists for one in found)


@pytest.mark.parametrize("sampling", [{"do_sample": True, "num_beams": 1}, {"num_beams": 3}])
def test_scores_follow_the_length_penalty_of_the_call(trained, sampling):
    rows = trained[1](["three one"]).input_ids
    changes = {"length_penalty": 1.5, "length_penalty_form": "power", **sampling}
    (found,) = TorchEngine(*trained, seed=1, **changes).n_best_rows(rows, 2)
    for one in found:
        (values,) = log_probs_of_pairs(trained[0], [(rows[0], one.ids)])
        assert one.score == pytest.approx(sum(values) / len(values) ** 1.5, abs=1e-4)


def test_the_score_of_greedy_search_follows_the_length_penalty_of_the_call(trained):
    (usual,) = best_translations(*trained, "three one four", num_beams=1, length_penalty=0.0)
    (found,) = best_translations(*trained, "three one four", num_beams=1, length_penalty=2.0)
    assert found.score == pytest.approx(usual.score / ((5 + len(found.ids)) / 6) ** 2, abs=1e-6)


@pytest.mark.parametrize("sampling", [{"num_beams": 3}, {"num_beams": 1, "do_sample": True}])
def test_the_scores_of_the_steps_are_not_kept(trained, monkeypatch, sampling):
    model, outputs = trained[0], []
    generate = model.generate

    def noting(**given):
        outputs.append(generate(**given))
        return outputs[0]

    monkeypatch.setattr(model, "generate", noting)
    engine = TorchEngine(*trained, seed=1, **sampling)
    (hypotheses,) = Translator(engine).n_best([SENTENCE], 3)
    assert len(hypotheses) == 3
    assert outputs[0].scores is None


@pytest.mark.parametrize(("beams", "n"), [(3, 4), (1, 1)])
def test_more_hypotheses_than_beams_are_refused(trained, beams, n):
    translator = Translator(TorchEngine(*trained, num_beams=beams))
    with pytest.raises(ValueError, match=f"n_best={n}, but num_beams={beams}: add --num_beams"):
        translator.n_best([SENTENCE], n)
    with pytest.raises(ValueError, match="n_best=0: give a positive number"):
        translator.n_best([SENTENCE], 0)


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_translate_writes_n_best_lists_with_scores(trained, trained_run, tmp_path, form):
    (tmp_path / "in").write_text(f"{SENTENCE}\n\ntwo\n", encoding="utf-8")
    paths = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    options = TranslateOptions(model=str(trained_run), num_beams=3, n_best=2, format=form, **paths)
    lines = translate_file(options).read_text(encoding="utf-8").splitlines()
    found = {number: [] for number in (1, 2, 3)}
    for line in lines:
        if form == "tsv":
            number, score, text = line.split("\t")
            found[int(number)].append((text, float(score)))
        else:
            record = json.loads(line)
            found[record["line"]] = [(one["text"], one["score"]) for one in record["hypotheses"]]
    assert found[2] == []
    for number, sentence in ((1, SENTENCE), (3, "two")):
        expected = best_translations(*trained, sentence, num_beams=3)[:2]
        assert [text for text, _ in found[number]] == [one.text for one in expected]
        scores = [one.score for one in expected]
        assert [score for _, score in found[number]] == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"n_best": 0}, "n_best=0: give a positive"), ({"format": "xml"}, "format='xml': choose one")],
    ids=str,
)
def test_bad_n_best_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TranslateOptions(model="m", **changes)
