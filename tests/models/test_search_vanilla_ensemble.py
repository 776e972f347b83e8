"""Ensembles: greedy and beam search with the mean of several models, against one written out."""

import math

import pytest
import torch
from lively import EOS, V, gnmt, lively_model, sources, spoken
from reference import beam_search

from hf_vanilla.models.search_vanilla_decoder import Ensemble, joined_logits

LONGEST = 7


def models(count=3):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        # members may differ in all but the vocabulary
        found.append(lively_model(lm_head_bias=True, decoder_layers=1 + seed % 2))
        with torch.no_grad():
            found[-1].lm_head.bias[EOS] = 2.0
    return found


def joined(members, source, words, average):
    """Log-probabilities of the next token, by whole forward passes."""
    ids = torch.tensor([[members[0].config.decoder_start_token_id, *words]])
    with torch.no_grad():
        logits = [
            m(**source, decoder_input_ids=ids, use_cache=False).logits[0, -1] for m in members
        ]
    probs = torch.stack([one.softmax(-1) for one in logits])
    if average == "probabilities":
        return probs.mean(0).log()
    return probs.log().mean(0).log_softmax(-1)


@pytest.mark.parametrize("average", ["probabilities", "log_probabilities"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_batch_is_decoded_as_each_sentence_by_hand(average, width):
    first, *others = members = models()
    torch.manual_seed(9)
    batch = sources(3, 5, 4)
    settings = {"num_beams": width, "max_new_tokens": LONGEST, "eos_token_id": EOS}
    if width > 1:
        settings |= {
            "early_stopping": "never",
            "length_penalty": 0.6,
            "num_return_sequences": width,
        }
    ensemble = Ensemble(others, average)
    found = first.generate(**batch, ensemble=ensemble, **settings).view(3, width, -1)
    scored = first.generate(
        **batch,
        ensemble=ensemble,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    assert torch.equal(scored.sequences.view(3, width, -1), found)
    for row, length in enumerate((3, 5, 4)):
        source = {name: ids[row : row + 1, :length] for name, ids in batch.items()}
        expected, _ = beam_search(
            lambda words, source=source: joined(members, source, words, average).tolist(),
            width=width,
            longest=LONGEST,
            penalty=gnmt if width > 1 else lambda _: 1.0,
            end=EOS,
        )
        if width == 1:
            words = []
            while len(words) < LONGEST and EOS not in words:
                words.append(int(joined(members, source, words, average).argmax()))
            expected = [(0.0, words)]
        assert [spoken(one) for one in found[row]] == [words for _, words in expected]
        if width > 1:
            scores = scored.sequences_scores.view(3, width)[row].tolist()
            assert scores == pytest.approx([score for score, _ in expected], abs=1e-5)


def test_an_ensemble_of_equal_models_is_one_model():
    (model,), batch = models(1), sources(5, 3)
    expected = model.generate(**batch, num_beams=3, max_new_tokens=LONGEST)
    found = model.generate(**batch, num_beams=3, max_new_tokens=LONGEST, ensemble=Ensemble([model]))
    assert torch.equal(found, expected)


def test_models_that_do_not_fit_are_refused():
    (model,), batch = models(1), sources(4)
    other = lively_model(vocab_size=V + 2)
    with pytest.raises(ValueError, match="vocab_size is 19 and 21: give models of one"):
        model.generate(**batch, ensemble=Ensemble([other]))
    other = lively_model(eos_token_id=5)
    with pytest.raises(ValueError, match="eos_token_id is 1 and 5"):
        model.generate(**batch, ensemble=Ensemble([other]))
    with pytest.raises(ValueError, match="in training mode"):
        model.generate(**batch, ensemble=Ensemble([lively_model().train()]))
    with pytest.raises(TypeError, match=r"give Ensemble\(...\), not a list"):
        model.generate(**batch, ensemble=[model])
    with pytest.raises(ValueError, match="greedy or beam search of input_ids"):
        model.generate(**batch, ensemble=Ensemble([model]), do_sample=True)
    with pytest.raises(ValueError, match="needs a second model"):
        Ensemble([])
    with pytest.raises(ValueError, match="average='mean': choose one of"):
        Ensemble([model], "mean")


def test_the_mean_of_two_probabilities_by_hand():
    logits = [torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()]
    plain = joined_logits(logits, "probabilities").exp()
    torch.testing.assert_close(plain, torch.tensor([[0.7, 0.3]]))
    geometric = [math.sqrt(0.45), math.sqrt(0.05)]
    expected = torch.tensor([[one / sum(geometric) for one in geometric]])
    found = joined_logits(logits, "log_probabilities").exp()
    torch.testing.assert_close(found, expected)
