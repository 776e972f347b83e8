"""The translation pipeline gives what `generate()` gives, in order, in transformers 4's form."""

import json

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from hf_vanilla import (
    VanillaConfig,
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaTranslationPipeline,
)
from hf_vanilla.models import search_vanilla_conditions
from hf_vanilla.models.pipeline_vanilla import lengths_until_end
from hf_vanilla.models.saving_vanilla import save_with_code
from hf_vanilla.models.search_vanilla import beam_search
from hf_vanilla.models.search_vanilla_constraints import Constraints
from hf_vanilla.models.search_vanilla_decoder import Ensemble
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.n_best import log_probs_of_pairs
from hf_vanilla.text.terminology import phrase_of
from hf_vanilla.text.translator import Translator, translate

TEXTS = ["one two", "", "nine", "three four five six", "  ", "seven", "eight two"]


@pytest.fixture(scope="module")
def translator(trained):
    return VanillaTranslationPipeline(*trained)


@pytest.fixture(scope="module")
def expected(trained):
    return translate(*trained, TEXTS)


def texts_of(records):
    assert all(record.keys() == {"translation_text"} for record in records)
    return [record["translation_text"] for record in records]


def generated(trained, text, **kwargs):
    """Rows of ids `(N, T)` and their texts, straight from `generate()`."""
    model, tokenizer = trained
    rows = model.generate(**tokenizer(text, return_tensors="pt"), **kwargs)
    return rows, tokenizer.batch_decode(rows, skip_special_tokens=True)


# --- what comes back ---------------------------------------------------------------------------


def test_a_text_gives_a_list_with_its_translation(translator):
    assert translator("one two") == [{"translation_text": "eins zwei"}]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 50])
def test_a_list_comes_back_in_order_whatever_the_batches(translator, expected, batch_size):
    assert texts_of(translator(TEXTS, batch_size=batch_size)) == expected


def test_a_tuple_and_a_column_of_a_dataset_are_lists_too(translator, expected):
    assert texts_of(translator(tuple(TEXTS))) == expected
    assert texts_of(translator(Dataset.from_dict({"en": TEXTS})["en"])) == expected


@pytest.mark.parametrize("batch_size", [1, 2])
def test_several_sequences_are_the_best_beams(translator, trained, batch_size):
    told = {"num_beams": 5, "num_return_sequences": 3}
    texts = ["one two", "six six seven"]
    results = translator(texts, batch_size=batch_size, **told)
    for text, records in zip(texts, results, strict=True):
        assert texts_of(records) == generated(trained, text, **told)[1]
    assert len(set(texts_of(results[0]))) > 1
    assert translator(texts[0], **told) == results[0]


def test_scores_are_those_of_the_n_best_list(translator, trained):
    texts = ["one two", "", "six six seven"]
    beams = {"num_beams": 4, "num_return_sequences": 3}
    results = translator(texts, batch_size=3, return_scores=True, **beams)
    lists = list(Translator(TorchEngine(*trained, num_beams=4)).n_best(texts, 3))
    assert [record["score"] for record in results[1]] == [None] * 3
    for records, hypotheses in ((results[0], lists[0]), (results[2], lists[2])):
        assert [record["translation_text"] for record in records] == [h.text for h in hypotheses]
        scores = [record["score"] for record in records]
        assert scores == pytest.approx([h.score for h in hypotheses], abs=1e-4)


@pytest.mark.parametrize("drawing", [{}, {"do_sample": True, "temperature": 3.0, "top_k": 0}])
def test_scores_without_beams_are_those_of_the_model_itself(translator, trained, drawing):
    model, tokenizer = trained
    torch.manual_seed(3)
    texts = ["one two", "six six seven"]
    asked = {"num_beams": 1, "return_tensors": True, "return_scores": True, **drawing}
    for text, record in zip(texts, translator(texts, batch_size=2, **asked), strict=True):
        ids = record["translation_token_ids"][1:].tolist()
        ((*values,),) = log_probs_of_pairs(model, [(tokenizer(text).input_ids, ids)])
        expected = sum(values) / ((5 + len(values)) / 6) ** 0.6
        assert record["score"] == pytest.approx(expected, abs=1e-4)


def test_a_prompt_is_not_scored_with_or_without_its_start_token(translator, trained):
    _, tokenizer = trained
    *word, _ = tokenizer(" acht").input_ids
    asked = {"num_beams": 1, "return_scores": True}
    (with_start,), (without,) = (
        translator("one two", decoder_input_ids=torch.tensor([prompt]), **asked)
        for prompt in ([0, *word], word)
    )
    assert with_start["translation_text"] == without["translation_text"]
    assert with_start["score"] == pytest.approx(without["score"], abs=1e-6)


def test_constraints_and_ensembles_of_a_call_reach_the_search(translator, trained):
    model, tokenizer = trained
    phrase = phrase_of(tokenizer, "acht acht")
    (record,) = translator("one two", num_beams=4, constraints=Constraints([[phrase]]))
    assert "acht acht" in record["translation_text"]
    torch.manual_seed(0)
    other = VanillaForConditionalGeneration(model.config).eval()  # of random weights
    asked = {"num_beams": 3, "ensemble": Ensemble([other]), "return_scores": True}
    _, (text,) = generated(trained, "six seven", num_beams=3, ensemble=Ensemble([other]))
    ((record,), (alone,)) = (
        translator("six seven", **asked),
        translator("six seven", num_beams=3, return_scores=True),
    )
    assert record["translation_text"] == text
    assert record["score"] < alone["score"]  # the other model is less sure


def test_ids_are_those_of_generate_up_to_the_end_token(translator, trained):
    texts = ["one two", "three four five six"]
    for text, record in zip(
        texts, translator(texts, batch_size=2, return_tensors=True), strict=True
    ):
        assert record.keys() == {"translation_token_ids"}
        (row,), _ = generated(trained, text)
        assert torch.equal(record["translation_token_ids"], row)


def test_ids_without_an_end_lose_only_their_padding(translator):
    (record,) = translator("one two", return_tensors=True, max_new_tokens=1)
    assert len(record["translation_token_ids"]) == 2  # the start token and a word


def test_text_and_ids_come_together_when_both_are_asked_for(translator):
    ((full,), (blank,)) = (
        translator(text, return_tensors=True, return_text=True) for text in ("nine", " ")
    )
    assert full["translation_text"] == "neun"
    ids = full["translation_token_ids"]
    assert translator.tokenizer.decode(ids, skip_special_tokens=True) == "neun"
    assert (blank["translation_text"], len(blank["translation_token_ids"])) == ("", 0)


def test_a_dict_that_generate_is_asked_for_is_understood(translator, expected):
    assert texts_of(translator(TEXTS[:1], return_dict_in_generate=True)) == expected[:1]


def test_nothing_gives_nothing(translator):
    assert translator([]) == list(translator(KeyDataset([], "en"))) == []
    assert list(translator(text for text in ())) == []


# --- streams -----------------------------------------------------------------------------------


def test_a_dataset_is_streamed_a_list_for_each_text(translator, expected):
    rows = KeyDataset(Dataset.from_dict({"en": TEXTS}), "en")
    found = list(translator(rows, batch_size=3))
    assert [texts_of(records) for records in found] == [[text] for text in expected]


@pytest.mark.parametrize("kind", ["generator", "iterator"])
def test_a_stream_without_end_is_read_as_it_is_translated(translator, expected, kind):
    read = []

    def endless():
        while True:
            for text in TEXTS:
                read.append(text)
                yield text

    stream = endless() if kind == "generator" else map(str, endless())
    found = iter(translator(stream, batch_size=2))
    assert [texts_of(next(found)) for _ in range(3)] == [[text] for text in expected[:3]]
    assert len(read) <= 6


# --- options -----------------------------------------------------------------------------------


def test_what_the_pipeline_was_made_with_holds_until_a_call_says_otherwise(trained):
    translator = VanillaTranslationPipeline(
        *trained, num_beams=2, num_return_sequences=2, return_tensors=True, batch_size=2
    )
    assert len(translator("one")) == 2
    (record,) = translator("one", num_return_sequences=1, return_tensors=False)
    assert record == {"translation_text": "eins"}


def test_truncation_cuts_at_the_tokenizers_limit_and_only_when_asked(translator):
    text = "one two three four five " * 20
    limit = translator.tokenizer.model_max_length
    whole = translator.preprocess(text)["input_ids"]
    cut = translator.preprocess(text, truncation=True)["input_ids"]
    assert whole.shape[1] > limit == cut.shape[1]
    assert torch.equal(cut[:, :-1], whole[:, : limit - 1])
    assert cut[0, -1] == translator.tokenizer.eos_token_id
    told = {"max_new_tokens": 5, "return_tensors": True}
    (short,), (long,) = (translator(text, truncation=t, **told) for t in (True, False))
    ids = translator.model.generate(cut, max_new_tokens=5)[0]
    assert torch.equal(short["translation_token_ids"], ids)
    assert long["translation_token_ids"].dtype == torch.int64


def test_a_model_in_training_mode_translates_without_dropout(trained, expected):
    model, tokenizer = trained
    translator = VanillaTranslationPipeline(model.train(), tokenizer)
    assert not model.training
    assert texts_of(translator(TEXTS)) == expected


# --- what is refused ---------------------------------------------------------------------------


def test_what_is_not_text_is_refused_with_its_kind(translator):
    cases = [
        (None, "not NoneType: None"),
        (7, "not int: 7"),
        (b"one", "not bytes"),
        (["one", 7], "not int: 7"),
        ([["one"], ["two"]], "not list"),
        ({"en": "one"}, "use KeyDataset"),
        ([{"role": "user", "content": "one"}], "not dict"),
    ]
    for inputs, message in cases:
        with pytest.raises(ValueError, match=f"give text or a list of texts, (.*){message}"):
            translator(inputs)


def test_a_stream_is_refused_where_it_stops_being_text(translator):
    found = iter(translator(text for text in ("one", None)))
    assert texts_of(next(found)) == ["eins"]
    with pytest.raises(ValueError, match="not NoneType"):
        next(found)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"num_beams": 0}, "num_beams=0: give a positive number"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"return_text": False}, "add return_tensors=True"),
        ({"num_beamz": 2}, "num_beamz"),
    ],
    ids=str,
)
def test_an_impossible_option_is_named(translator, told, message):
    with pytest.raises(ValueError, match=message):
        translator("one", **told)


@pytest.mark.parametrize("half", [VanillaEncoderModel, VanillaForCausalLM])
def test_a_model_that_does_not_translate_is_refused(trained, tiny_config, half):
    with pytest.raises(ValueError, match=f"a {half.__name__} does not translate"):
        VanillaTranslationPipeline(half(tiny_config), trained[1])


def test_a_name_instead_of_a_model_and_a_missing_tokenizer_are_reported(trained):
    with pytest.raises(ValueError, match="give a loaded model"):
        VanillaTranslationPipeline("runs/demo")
    with pytest.raises(ValueError, match="needs a tokenizer"):
        VanillaTranslationPipeline(trained[0])


# --- the three ways to it ----------------------------------------------------------------------


def test_our_own_task_name_is_known_with_the_package(trained_run, expected):
    made = pipeline("vanilla-translation", model=str(trained_run), device="cpu")
    assert type(made) is VanillaTranslationPipeline
    assert texts_of(made(TEXTS)) == expected


def test_a_model_with_its_code_is_found_by_the_name_translation(translator, expected, tmp_path):
    save_with_code(translator.model, tmp_path, translator.tokenizer)
    made = pipeline("translation", model=str(tmp_path), trust_remote_code=True)
    assert texts_of(made(TEXTS, batch_size=4)) == expected
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        pipeline("translation", model=str(tmp_path))


def test_with_the_package_every_way_to_load_a_model_decodes_by_our_search(
    translator, tmp_path, monkeypatch
):
    """Also from a folder with code, which alone would run transformers' search."""
    save_with_code(translator.model, tmp_path, translator.tokenizer)
    trust = {"trust_remote_code": True}
    models = [
        translator.model,
        VanillaForConditionalGeneration(translator.model.config).eval(),
        VanillaForConditionalGeneration.from_pretrained(tmp_path),
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path),
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **trust),
        pipeline("vanilla-translation", model=str(tmp_path)).model,
        pipeline("translation", model=str(tmp_path), **trust).model,
    ]
    searches = []

    def searched(*args, **kwargs):
        searches.append(1)
        return beam_search(*args, **kwargs)

    monkeypatch.setattr(search_vanilla_conditions, "beam_search", searched)
    batch = translator.tokenizer(["one two"], return_tensors="pt")
    for count, model in enumerate(models, start=1):
        model.generate(**batch, num_beams=2, max_new_tokens=2)
        assert len(searches) == count


ALONE = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, pipeline
folder, again = sys.argv[1:3]
texts = json.loads(sys.argv[3])
made = pipeline("translation", model=folder, trust_remote_code=True)
found = [made(texts, batch_size=3, num_beams=4)]
made.save_pretrained(again)
found.append(pipeline("translation", model=again, trust_remote_code=True)(texts, num_beams=4))
print(json.dumps([type(made).__module__, found]))
"""


@pytest.mark.slow
def test_a_folder_with_code_translates_without_the_package_and_so_does_its_copy(
    program_without_package, translator, tmp_path
):
    save_with_code(translator.model, tmp_path / "coded", translator.tokenizer)
    words = ("python", "-c", ALONE, tmp_path / "coded", tmp_path / "again", json.dumps(TEXTS))
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = program_without_package(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    module, found = json.loads(done.stdout)
    assert module.startswith("transformers_modules.")
    assert found == [translator(TEXTS, num_beams=4)] * 2


# --- where a sequence ends -----------------------------------------------------------------------


def test_a_sequence_ends_at_the_first_end_token_behind_the_prompt():
    cases = [
        ([0, 5, 1, 0, 0], 1, 1, 3),
        ([1, 5, 6, 1, 0], 1, 1, 4),  # starts with the end token
        ([1, 1, 0, 0, 0], 1, 1, 2),  # an empty translation
        ([1, 7, 1, 5, 1], 3, 1, 5),  # the prompt contains the end token
        ([0, 5, 8, 1, 0], 1, [1, 8], 3),
        ([0, 5, 6, 0, 0], 1, 1, 3),  # stopped by a limit before the end token
        ([0, 0, 0, 0, 0], 1, 1, 1),
        ([0, 5, 6, 7, 8], 1, None, 5),
    ]
    for row, prompt_length, end_ids, length in cases:
        rows = torch.tensor([row, row])
        found = lengths_until_end(
            rows, prompt_length=prompt_length, end_ids=end_ids, pad_token_id=0
        )
        assert found.tolist() == [length, length]


@pytest.fixture
def starts_with_end(trained):
    """A pipeline whose decoder starts with the end token, as fairseq's and BART's do."""
    tokenizer = trained[1]
    sizes = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = VanillaConfig(vocab_size=len(tokenizer), decoder_start_token_id=1, **sizes, **heads)
    return VanillaTranslationPipeline(VanillaForConditionalGeneration(config), tokenizer)


def test_a_decoder_that_starts_with_the_end_token_translates(starts_with_end):
    model, tokenizer = starts_with_end.model, starts_with_end.tokenizer
    inputs = tokenizer("one two", return_tensors="pt")
    (row,) = model.generate(**inputs, max_new_tokens=5, min_new_tokens=5)
    told = {"max_new_tokens": 5, "min_new_tokens": 5}
    (record,) = starts_with_end("one two", return_text=True, return_tensors=True, **told)
    assert torch.equal(record["translation_token_ids"], row)
    assert record["translation_text"] == tokenizer.decode(row, skip_special_tokens=True) != ""


def test_the_end_token_of_the_call_ends_a_translation(starts_with_end):
    (full,) = starts_with_end(
        "one two", return_tensors=True, max_new_tokens=6, min_new_tokens=6, num_beams=1
    )
    ids = full["translation_token_ids"].tolist()
    (cut,) = starts_with_end(
        "one two", return_tensors=True, max_new_tokens=6, num_beams=1, eos_token_id=ids[2]
    )
    first = ids.index(ids[2], 1)
    assert cut["translation_token_ids"].tolist() == ids[: first + 1]
