"""Constrained beam search: against all translations that are possible, and what it guarantees."""

import itertools

import pytest
import torch
from lively import EOS, PAD, V, gnmt, lively_model, log_probs_of, sources, spoken

from hf_vanilla.models.search_vanilla_constraints import Constraints, Phrase, transitions

LONGEST = 4
FEW = 6  # tokens of the vocabulary that is enumerated
SETTINGS = {"early_stopping": "never", "length_penalty": 0.6, "eos_token_id": EOS}


def contains(words, ids):
    return any(words[i : i + len(ids)] == list(ids) for i in range(len(words) - len(ids) + 1))


def has(words, phrase):
    """Whether a translation has a phrase anywhere, or its other form at the start."""
    return contains(words, phrase.ids) or words[: len(phrase.at_start)] == list(
        phrase.at_start or [None]
    )


def best_of_all(model, source, phrases):
    """Score and tokens of the best translation of up to LONGEST tokens that has all phrases."""
    found = []
    for length in range(1, LONGEST + 1):
        rest = [token for token in range(FEW) if token != EOS]
        ends = range(FEW) if length == LONGEST else [EOS]
        for words in itertools.product(*[rest] * (length - 1), ends):
            if all(has(list(words), phrase) for phrase in phrases):
                found.append(list(words))
    start = model.config.decoder_start_token_id
    scored = []
    for length in {len(words) for words in found}:
        rows = torch.tensor([words for words in found if len(words) == length])
        read = torch.cat((torch.full((len(rows), 1), start), rows[:, :-1]), dim=1)
        with torch.no_grad():
            logits = model(
                **{name: ids.expand(len(rows), -1) for name, ids in source.items()},
                decoder_input_ids=read,
                use_cache=False,
            ).logits
        sums = logits.log_softmax(-1).gather(2, rows.unsqueeze(2)).sum((1, 2)) / gnmt(length)
        scored += zip(sums.tolist(), rows.tolist(), strict=True)
    return max(scored)


@pytest.mark.parametrize(
    "phrases",
    [
        *([], [[3]], [[3, 3, 4]], [[5, 2], [2, 4]], [[4], [3], [5]], [[2, 5], [5]]),
        [[2, 2], [2, 2, 3]],
        # with other tokens at the start, more or fewer of them
        *([([2, 3], [4])], [([5], [4, 2, 3])], [([2, 3], [4, 3]), [3, 5]]),
        # inside another phrase, but not at the start
        [([2, 3], [3]), [2]],
    ],
    ids=str,
)
def test_with_all_beams_the_best_of_all_possible_translations_is_found(phrases):
    phrases = [Phrase(*one) if isinstance(one, tuple) else Phrase(one) for one in phrases]
    for seed in range(3):
        torch.manual_seed(seed)
        model = lively_model(vocab_size=FEW)
        source = {"input_ids": torch.randint(2, FEW, (1, 5))}
        found = model.generate(
            **source,
            **SETTINGS,
            num_beams=FEW * (FEW - 1) ** (LONGEST - 1),
            max_new_tokens=LONGEST,
            return_dict_in_generate=True,
            output_scores=True,
            constraints=Constraints([phrases]),
        )
        score, words = best_of_all(model, source, phrases)
        assert spoken(found.sequences[0]) == words
        assert found.sequences_scores.item() == pytest.approx(score, abs=1e-5)


def random_constraints(rows, *, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))  # noqa: E731
    return [
        [[draw(2, V) for _ in range(draw(1, 4))] for _ in range(draw(0, 4))] for _ in range(rows)
    ]


@pytest.mark.parametrize("beams", [2, 3, 8])
def test_every_constraint_is_met_and_scores_are_those_of_the_model(beams):
    model, lengths = lively_model(), (5, 3, 6, 2, 4, 7)
    batch, phrases = sources(*lengths), random_constraints(6, seed=beams)
    asked = Constraints([[Phrase(ids) for ids in of_one] for of_one in phrases])
    limit = 12
    found = model.generate(
        **batch,
        **SETTINGS,
        num_beams=beams,
        max_new_tokens=limit,
        constraints=asked,
        return_dict_in_generate=True,
        output_scores=True,
    )
    same = model.generate(
        **batch, **SETTINGS, num_beams=beams, max_new_tokens=limit, constraints=asked
    )
    for row, of_one in enumerate(phrases):
        words = spoken(found.sequences[row])
        assert all(contains(words, ids) for ids in of_one)
        source = {name: ids[row : row + 1, : lengths[row]] for name, ids in batch.items()}
        score = log_probs_of(model, source, found.sequences[row]).sum() / gnmt(len(words))
        assert found.sequences_scores[row].item() == pytest.approx(score.item(), abs=1e-5)
        # finished sentences leave the batch in the second call, and no batch in the third
        assert spoken(same[row]) == words
        alone = Constraints([[Phrase(ids) for ids in of_one]])
        alone = model.generate(
            **source, **SETTINGS, num_beams=beams, max_new_tokens=limit, constraints=alone
        )
        assert spoken(alone[0]) == words


def test_sentences_without_phrases_are_translated_as_ever():
    model, batch = lively_model(), sources(5, 3, 6)
    settings = {**SETTINGS, "num_beams": 4, "max_new_tokens": 9}
    plain = model.generate(**batch, **settings)
    nothing = model.generate(**batch, **settings, constraints=Constraints([[], [], []]))
    assert torch.equal(plain, nothing)
    one = model.generate(**batch, **settings, constraints=Constraints([[], [Phrase([7, 8])], []]))
    for row in (0, 2):
        assert spoken(one[row]) == spoken(plain[row])


def test_the_limit_of_each_sentence_is_kept():
    model, batch = lively_model(), sources(2, 6)
    model.generation_config.max_tokens_beyond_source = 1
    asked = Constraints([[Phrase([7, 8]), Phrase([9])], [Phrase([9, 9, 9, 9])]])
    found = model.generate(**batch, **SETTINGS, num_beams=3, constraints=asked)
    words = found[0, 1:4].tolist()  # 2 tokens of the source and 1
    assert sorted(words) == [7, 8, 9]
    assert contains(words, [7, 8])
    assert set(found[0, 4:].tolist()) == {EOS}  # filled
    assert contains(spoken(found[1]), [9, 9, 9, 9])


def test_a_phrase_at_the_start_needs_no_space_in_front():
    model, batch, space = lively_model(), sources(4), 5
    settings = {**SETTINGS, "num_beams": 2, "max_new_tokens": 2}
    found = model.generate(
        **batch, **settings, constraints=Constraints([[Phrase([space, 7, 8], [7, 8])]])
    )
    assert spoken(found[0]) == [7, 8]


def test_the_tokens_of_the_start_count_nowhere_else():
    model, batch = lively_model(), sources(4)
    settings = {**SETTINGS, "num_beams": 2, "max_new_tokens": 5, "forced_bos_token_id": 9}
    found = model.generate(**batch, **settings, constraints=Constraints([[Phrase([7, 8], [6])]]))
    assert contains(spoken(found[0]), [7, 8])


@pytest.mark.parametrize("ids", [[1, 2, 1, 2, 3], [4, 4, 4], [1, 1, 2, 1, 1, 1], [7]])
def test_the_longest_part_of_a_phrase_is_followed(ids):
    table = transitions(ids)
    for words in itertools.product(sorted(set(ids)), repeat=6):
        seen = 0
        for count, token in enumerate(words, start=1):
            seen = table[seen][ids.index(token)]
            text = list(words[:count])
            longest = max(
                n for n in range(len(ids) + 1) if n <= count and text[count - n :] == ids[:n]
            )
            assert seen == longest
            if seen == len(ids):
                break


def test_what_cannot_be_met_is_named():
    model, batch = lively_model(), sources(4, 3)
    settings = {**SETTINGS, "num_beams": 3, "max_new_tokens": 4}
    long = Constraints([[], [Phrase([2, 3, 4], text="abc"), Phrase([5, 6])]])
    with pytest.raises(ValueError, match=r"'abc', \[5, 6\] have 5 tokens, .* at most 4: raise"):
        model.generate(**batch, **settings, constraints=long)
    many = Constraints([[Phrase([i, i + 1], text=f"{i}" + "x" * 99) for i in range(3, 10)], []])
    shown = ", ".join(f"'{i}{'x' * 37}…" for i in range(3, 8))
    with pytest.raises(
        ValueError, match=rf"contains {shown} and 2 more: raise num_beams \(now 3\)"
    ):
        model.generate(**batch, **settings, constraints=many)
    asked = Constraints([[], [Phrase([2, 3, 4], text="abc")]])
    with pytest.raises(ValueError, match=r"that contains 'abc': raise .* such as bad_words_ids"):
        model.generate(**batch, **settings, constraints=asked, bad_words_ids=[[3]])
    with pytest.raises(ValueError, match="2 lists of constraints for 1 sentences: give one each"):
        model.generate(**sources(4), **settings, constraints=asked)
    with pytest.raises(ValueError, match="2 or more beams"):
        model.generate(**batch, max_new_tokens=4, num_beams=1, constraints=asked)
    with pytest.raises(ValueError, match="constraints beam search"):
        model.generate(**batch, **settings, constraints=asked, do_sample=True)
    with pytest.raises(ValueError, match="has no tokens"):
        model.generate(**batch, **settings, constraints=Constraints([[Phrase([])], []]))
    ended = Constraints([[Phrase([7, EOS], text="Haus")], []])
    with pytest.raises(ValueError, match="'Haus' has an end token"):
        model.generate(**batch, **settings, constraints=ended)


def test_a_forced_end_leaves_room_for_the_phrases():
    model, batch = lively_model(), sources(4)
    settings = {**SETTINGS, "num_beams": 2, "max_new_tokens": 4, "forced_eos_token_id": EOS}
    asked = Constraints([[Phrase([7, 8, 9])]])
    found = model.generate(**batch, **settings, constraints=asked)
    assert spoken(found[0]) == [7, 8, 9, EOS]
    assert PAD not in spoken(found[0])
