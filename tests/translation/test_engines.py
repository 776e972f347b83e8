"""Both engines behind one interface, and CTranslate2's own limits."""

import copy
import json
import logging

import pytest
import small_run
import torch
from transformers import GenerationConfig

from hf_vanilla.convert.ctranslate2 import ExportCTranslate2Options, export_ctranslate2
from hf_vanilla.translation.engines import (
    CTranslate2Engine,
    TorchEngine,
    import_ctranslate2,
    store_by_columns,
)
from hf_vanilla.translation.translator import (
    TranslateOptions,
    Translator,
    load_translator,
    translate_file,
)

SOURCES = [source for source, _ in small_run.digit_pairs()[:13]]


@pytest.fixture(scope="module")
def exported(trained_run, tmp_path_factory):
    """The trained model as a folder for CTranslate2."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("ct2") / "model"
    return export_ctranslate2(ExportCTranslate2Options(model=str(trained_run), output=str(folder)))


@pytest.fixture
def ours(trained, exported):
    """Our engine with the decoding of the export."""
    decoding = GenerationConfig.from_pretrained(exported)
    told = {name: getattr(decoding, name) for name in ("length_penalty_form", "early_stopping")}
    return TorchEngine(*trained, **told)


def test_a_translator_gives_the_same_with_either_engine(exported, ours):
    lines = [*SOURCES, "", "one \0 two", "q " * 300, "\U0001f680 \u05d0"]
    there = Translator(exported, engine="ctranslate2", window=5, tokens_per_batch=60)
    assert list(there.translate(lines)) == list(Translator(ours).translate(lines))


def test_weights_stored_by_columns_translate_alike_and_keep_values_ties_and_room(trained):
    model, tokenizer = trained
    stored = copy.deepcopy(model)
    store_by_columns(stored)
    rows = tokenizer(SOURCES).input_ids
    assert TorchEngine(stored, tokenizer).translate_rows(rows) == TorchEngine(
        model, tokenizer
    ).translate_rows(rows)
    layer = stored.model.decoder.layers[0].fc1.weight
    assert layer.stride() == (1, layer.shape[0])
    assert layer.untyped_storage().nbytes() == layer.numel() * layer.element_size()
    assert stored.lm_head.weight.is_contiguous()  # the embedding reads its rows
    assert stored.lm_head.weight is stored.get_input_embeddings().weight
    for name, weight in model.state_dict().items():
        assert torch.equal(stored.state_dict()[name], weight)


def test_only_a_translator_that_loads_the_model_itself_changes_how_it_is_stored(
    trained, trained_run
):
    model, tokenizer = trained
    given = Translator(TorchEngine(model, tokenizer)).engine.model
    assert given.model.decoder.layers[0].fc1.weight.is_contiguous()
    loaded = Translator(str(trained_run)).engine.model
    assert not loaded.model.decoder.layers[0].fc1.weight.is_contiguous()


def test_a_bad_line_becomes_empty_there_too(exported, caplog):
    translator = Translator(exported, engine="ctranslate2")
    with caplog.at_level(logging.WARNING):
        found = list(translator.translate([SOURCES[0], "\udfff", SOURCES[1]]))
    assert [bool(text) for text in found] == [True, False, True]
    assert translator.failed == [2]


def test_a_file_is_translated_by_it(exported, ours, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    translate_file(
        TranslateOptions(
            model=str(exported), engine="ctranslate2", input=str(source), output=str(output)
        )
    )
    expected = [f"{text}\n" for text in Translator(ours).translate(SOURCES)]
    assert output.read_text(encoding="utf-8") == "".join(expected)


@pytest.mark.parametrize(
    ("told", "limits"),
    [
        ({"max_tokens_beyond_source": 3}, [5, 9]),
        ({"max_tokens_beyond_source": 3, "max_length": 8}, [5, 7]),
        ({"max_tokens_beyond_source": 3, "max_new_tokens": 4}, [4, 4]),
        ({"max_tokens_beyond_source": None, "max_length": 8}, [7, 7]),
        ({"max_tokens_beyond_source": None, "max_length": None}, [19, 19]),
    ],
)
def test_the_limit_is_that_of_transformers(exported, trained, told, limits):
    """Of sources of 2 and 6 tokens; transformers' own limit is 20, its start token included."""
    engine = CTranslate2Engine(exported, **told)
    assert [engine._limit(tokens) for tokens in (2, 6)] == limits


@pytest.mark.parametrize("beyond", [-3, -1, 0])
def test_short_limits_cut_both_engines_at_the_same_word(exported, ours, beyond):
    rows = ours.tokenizer(SOURCES).input_ids
    told = {"max_tokens_beyond_source": beyond}
    ours.generate_kwargs.update(told)
    found = CTranslate2Engine(exported, **told).translate_rows(rows)
    assert found == ours.translate_rows(rows)


@pytest.mark.parametrize(
    "told",
    [{"no_repeat_ngram_size": 1}, {"length_penalty": 3.0}, {"length_penalty": 0.01}],
    ids=str,
)
def test_other_settings_mean_the_same(exported, ours, told):
    rows = ours.tokenizer(["one one one", "two", "three three three three"]).input_ids
    ours.generate_kwargs.update(told, renormalize_logits=True)
    assert CTranslate2Engine(exported, **told).translate_rows(rows) == ours.translate_rows(rows)


def test_forbidden_words_do_not_come(exported, ours):
    rows = ours.tokenizer(SOURCES).input_ids
    banned = [[ours.tokenizer(text).input_ids[0]] for text in (" zwei", "zwei")]
    told = {"bad_words_ids": banned, "renormalize_logits": True}
    ours.generate_kwargs.update(told)
    found = CTranslate2Engine(exported, **told).translate_rows(rows)
    assert found == ours.translate_rows(rows)
    assert found != CTranslate2Engine(exported).translate_rows(rows)
    assert "zwei" not in " ".join(found)


def test_a_setting_it_does_not_have_is_refused(exported):
    with pytest.raises(
        ValueError, match="CTranslate2 does not decode with top_k: it has bad_words"
    ):
        CTranslate2Engine(exported, top_k=3)


def test_a_folder_of_the_other_engine_is_refused_either_way(exported, trained_run, tmp_path):
    with pytest.raises(ValueError, match=r"no export for CTranslate2 .*hf-vanilla export"):
        CTranslate2Engine(trained_run)
    with pytest.raises(ValueError, match="is a model for CTranslate2: translate with --engine"):
        load_translator(str(exported))


def test_the_words_of_the_folder_are_those_of_the_ids(exported, trained):
    words = json.loads((exported / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = trained[1]("f\u00fcnf \0").input_ids
    assert [words[i] for i in ids] == trained[1].convert_ids_to_tokens(ids)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-vanilla\[ctranslate2\]'"):
        import_ctranslate2()
