"""Sampling by a seed, and fields of the generation config on the command line."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla import VanillaConfig
from hf_vanilla.models.generation_vanilla import paper_decoding
from hf_vanilla.options import UsageError, parse_options
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.file_translation import TranslateOptions
from hf_vanilla.text.generation_fields import KINDS, check_fields
from hf_vanilla.text.n_best import log_probs_of_pairs
from hf_vanilla.text.pair_files import ScoreOptions
from hf_vanilla.text.translator import Translator
from hf_vanilla.training.recipe import read_recipe

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


def test_impossible_values_of_fields_are_refused_with_a_remedy():
    cases = [
        ("do_sample", "yes", "give true or false"),
        ("do_sample", "1", "give true or false"),
        ("max_length", "-5", "give a whole number, from 1 to 100000"),
        ("max_new_tokens", "true", "give a whole number"),
        ("max_new_tokens", "ten", "give a whole number"),
        ("max_new_tokens", "1.5", "give a whole number"),
        ("max_new_tokens", "1000000000", "from 1 to 100000"),
        ("length_penalty", "-100000", "give a number from -2 to 5"),
        ("length_penalty", "100000", "give a number from -2 to 5"),
        ("length_penalty", ".nan", "give a number"),
        ("length_penalty", "nan", "give a number"),
        ("length_penalty", ".inf", "give a number"),
        ("length_penalty", "null", "give a number"),
        ("length_penalty_form", "[gnmt]", "choose one of gnmt, power"),
        ("max_tokens_beyond_source", "ten", "give a whole number"),
        ("max_tokens_beyond_source", "null", "give max_length or max_new_tokens instead"),
        ("max_time", "ten", "give a positive number"),
        ("top_p", "2", "give a number from 0 to 1"),
        ("top_p", ".nan", "give a number from 0 to 1"),
        ("exponential_decay_length_penalty", "3", "give the first token and a factor"),
        ("bad_words_ids", "[3]", "give lists of token ids"),
        ("sequence_bias", "{3: 5}", "give lists of token ids with a bias"),
        ("watermarking_config", "foo", "known: bad_words_ids, begin_suppress_tokens"),
    ]
    for key, value, remedy in cases:
        arguments = [f"--generation.{key}", value, "--seed", "3"]
        with pytest.raises(ValueError, match=f"^generation.*{key}.*{remedy}"):
            parse_options(TranslateOptions, arguments)
        with pytest.raises(ValueError, match=f"decoding.*{key}"):
            read_recipe([f"--decoding.{key}", value])


def test_every_field_of_the_table_is_one_of_transformers_or_of_the_paper():
    own = {"length_penalty_form", "max_tokens_beyond_source"}
    assert KINDS.keys() - own <= GenerationConfig().to_dict().keys()
    decoding = paper_decoding(VanillaConfig()).to_diff_dict() | {"max_length": 200}
    check_fields("decoding", {k: v for k, v in decoding.items() if k != "transformers_version"})
    check_fields("decoding", {"sequence_bias": [[[3, 5], -2.0]], "bad_words_ids": [[3], [4, 5]]})


def test_a_token_id_beyond_the_vocabulary_is_refused(trained_run):
    for field in ({"forced_bos_token_id": 50_000}, {"bad_words_ids": [[3], [4, 50_000]]}):
        with pytest.raises(ValueError, match="=50000: the vocabulary ends at"):
            Translator(str(trained_run), **field)


def test_null_switches_a_field_of_the_model_off(trained):
    model = copy.deepcopy(trained[0])
    model.generation_config.max_tokens_beyond_source = -4
    cut = list(Translator(TorchEngine(model, trained[1])).translate(SENTENCES))
    arguments = ["--generation.max_tokens_beyond_source", "null", "--generation.max_length", "60"]
    options = parse_options(TranslateOptions, arguments)
    engine = TorchEngine(model, trained[1], **options.generate_kwargs)
    found = list(Translator(engine).translate(SENTENCES))
    assert found == list(Translator(TorchEngine(*trained)).translate(SENTENCES))
    assert found != cut


@pytest.mark.parametrize("changes", [{}, {"do_sample": True, "num_beams": 1}, {"do_sample": True}])
def test_a_model_with_nan_weights_is_refused_with_and_without_sampling(trained, changes):
    model = copy.deepcopy(trained[0])
    model.base_model.decoder.layers[0].fc1.weight.data[0, 0] = torch.nan
    translator = Translator(TorchEngine(model, trained[1], **changes))
    with pytest.raises(ValueError, match="logits are NaN at step 1"):
        list(translator.translate(SENTENCES))
    if changes:
        with pytest.raises(ValueError, match="logits are NaN at step 1"):
            list(translator.n_best(SENTENCES, 1))


# --- ensembles ----------------------------------------------------------------------------------


def test_further_models_on_the_command_line_are_an_ensemble():
    for arguments in (
        ["--model", "a", "--num_beams=2", "--model=b", "--model", "c"],
        ["--model", "a", "--num_beams=2", "--ensemble", "b", "c"],
    ):
        options = parse_options(TranslateOptions, arguments)
        assert (options.model, list(options.ensemble), options.num_beams) == ("a", ["b", "c"], 2)
    assert not parse_options(TranslateOptions, ["--model", "a"]).ensemble


def test_further_models_by_two_options_at_once_are_refused():
    arguments = ["--model", "a", "--ensemble", "b", "--model", "c"]
    with pytest.raises(UsageError, match="--ensemble and several --model: give all models by one"):
        parse_options(TranslateOptions, arguments)


def test_a_second_model_is_refused_where_one_is_used():
    arguments = ["--source", "s", "--target", "t", "--model", "a", "--model=b"]
    with pytest.raises(UsageError, match="--model has 2 values, a, b: give one"):
        parse_options(ScoreOptions, arguments)
    assert parse_options(ScoreOptions, arguments[:-1]).model == "a"


def test_a_translator_of_two_equal_folders_translates_as_one(trained_run, trained):
    single = list(Translator(str(trained_run)).translate(SENTENCES))
    double = Translator(str(trained_run), ensemble=[str(trained_run)])
    assert list(double.translate(SENTENCES)) == single


def test_models_of_other_vocabularies_are_no_ensemble(trained_run):
    from hf_vanilla.text.loading import demo_model

    with pytest.raises(ValueError, match="have different vocabularies: give models of one"):
        Translator(str(trained_run), ensemble=[demo_model()])
    with pytest.raises(ValueError, match="an ensemble needs the engine torch"):
        Translator("x", engine="ctranslate2", ensemble=["y"])


def test_an_ensemble_that_is_to_sample_is_refused_before_the_others_are_loaded(trained_run):
    with pytest.raises(ValueError, match=r"an ensemble needs.*leave out generation\.do_sample"):
        Translator(str(trained_run), ensemble=["nowhere"], do_sample=True)
