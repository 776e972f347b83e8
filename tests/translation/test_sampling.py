"""Sampling by a seed, and fields of the generation config on the command line."""

import pytest
import torch

from hf_vanilla.options import parse_options
from hf_vanilla.translation.engines import TorchEngine
from hf_vanilla.translation.file_translation import TranslateOptions
from hf_vanilla.translation.forced_decoding import log_probs_of_pairs
from hf_vanilla.translation.translator import Translator

SENTENCES = ["three one four", "two", "five six", "nine nine"]
SAMPLING = {"do_sample": True, "num_beams": 1, "temperature": 3.0, "top_k": 0}


def sampled(trained, **changes):
    engine = TorchEngine(*trained, **{**SAMPLING, **changes})
    return list(Translator(engine).translate(SENTENCES))


def test_a_seed_repeats_what_is_drawn_and_leaves_the_generator(trained):
    before = torch.get_rng_state()
    first = sampled(trained, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert sampled(trained, seed=5) == first
    assert sampled(trained, seed=6) != first


def test_what_is_drawn_for_a_batch_does_not_depend_on_earlier_batches(trained):
    engine = TorchEngine(*trained, seed=5, **SAMPLING)
    rows = trained[1](SENTENCES[:2]).input_ids
    alone = engine.translate_rows(rows)
    engine.translate_rows(trained[1](SENTENCES[2:]).input_ids)
    assert engine.translate_rows(rows) == alone


def test_sampling_from_the_best_token_alone_is_greedy_search(trained):
    greedy = list(Translator(TorchEngine(*trained, num_beams=1)).translate(SENTENCES))
    assert sampled(trained, seed=1, top_k=1) == greedy


def test_sampled_lists_have_the_scores_of_the_model_and_are_sorted(trained):
    model, tokenizer = trained
    translator = Translator(TorchEngine(*trained, seed=3, **SAMPLING))
    for sentence, found in zip(SENTENCES, translator.n_best(SENTENCES, 6), strict=True):
        assert len(found) == 6
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        pairs = [(tokenizer(sentence).input_ids, one.ids) for one in found]
        expected = [
            sum(values) / ((5 + len(values)) / 6) ** 0.6
            for values in log_probs_of_pairs(model, pairs)
        ]
        assert scores == pytest.approx(expected, abs=1e-4)


def test_fields_of_the_generation_config_reach_the_search():
    arguments = ["--generation.top_p", "0.9", "--generation.do_sample=true", "--seed", "4"]
    options = parse_options(TranslateOptions, [*arguments, "--num_beams", "1"])
    expected = {"top_p": 0.9, "do_sample": True, "num_beams": 1, "seed": 4}
    assert options.generate_kwargs == expected


def test_length_limits_of_the_command_line_hold(trained):
    arguments = ["--generation.max_new_tokens", "2", "--generation.min_new_tokens", "2"]
    options = parse_options(TranslateOptions, arguments)
    engine = TorchEngine(*trained, **options.generate_kwargs)
    rows = trained[1](SENTENCES).input_ids
    assert {len(one.ids) for best in engine.n_best_rows(rows, 1) for one in best} == {2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--generation.topk", "3"], "generation: unknown key 'topk'; did you mean 'top_k'"),
        (["--generation.top_k", "[3"], "is not a YAML value"),
        (["--generation.num_beams", "3"], "generation.num_beams: give --num_beams"),
        (["--seed", "3"], "seed=3 needs --generation.do_sample true"),
    ],
    ids=str,
)
def test_bad_fields_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        parse_options(TranslateOptions, arguments)


# --- ensembles ----------------------------------------------------------------------------------


def test_further_models_on_the_command_line_are_an_ensemble():
    for arguments in (
        ["--model", "a", "--num_beams=2", "--model=b", "--model", "c"],
        ["--model", "a", "--num_beams=2", "--ensemble", "b", "c"],
    ):
        options = parse_options(TranslateOptions, arguments)
        assert (options.model, list(options.ensemble), options.num_beams) == ("a", ["b", "c"], 2)
    assert not parse_options(TranslateOptions, ["--model", "a"]).ensemble


def test_a_translator_of_two_equal_folders_translates_as_one(trained_run, trained):
    single = list(Translator(str(trained_run)).translate(SENTENCES))
    double = Translator(str(trained_run), ensemble=[str(trained_run)])
    assert list(double.translate(SENTENCES)) == single


def test_models_of_other_vocabularies_are_no_ensemble(trained_run):
    from hf_vanilla.translation.demo_model import demo_model

    with pytest.raises(ValueError, match="have different vocabularies: an ensemble needs"):
        Translator(str(trained_run), ensemble=[demo_model()])
    with pytest.raises(ValueError, match="an ensemble needs the engine torch"):
        Translator("x", engine="ctranslate2", ensemble=["y"])
