"""The n-best list: the hypotheses of the search, with scores computed a second way."""

import pytest
import torch

from hf_vanilla.translation.n_best import best_translations

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
