"""Both engines give equal translations; limits and errors of CTranslate2."""

import copy
import json
import logging

import pytest
import small_run
import torch
from torch import nn
from transformers import GenerationConfig

from hf_vanilla.convert.export import ExportOptions, export
from hf_vanilla.models.onednn_vanilla import can_multiply
from hf_vanilla.models.packing_vanilla import PackedLinear
from hf_vanilla.text.engines import (
    CTranslate2Engine,
    TorchEngine,
    import_ctranslate2,
    most_new_tokens,
)
from hf_vanilla.text.file_translation import TranslateOptions, translate_file
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.translator import Translator

SOURCES = [source for source, _ in small_run.digit_pairs()[:13]]


@pytest.fixture(scope="module")
def exported(trained_run, tmp_path_factory):
    """The trained model as a folder for CTranslate2."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("ct2") / "model"
    return export(ExportOptions(model=str(trained_run), output=str(folder)))


@pytest.fixture
def ours(trained, exported):
    """Our engine with the decoding of the export."""
    decoding = GenerationConfig.from_pretrained(exported)
    changes = {name: getattr(decoding, name) for name in ("length_penalty_form", "early_stopping")}
    return TorchEngine(*trained, **changes)


def test_both_engines_give_equal_translations(exported, ours):
    lines = [*SOURCES, "", "one \0 two", "q " * 300, "\U0001f680 \u05d0"]
    ctranslate2 = Translator(exported, engine="ctranslate2", window=5, tokens_per_batch=60)
    assert list(ctranslate2.translate(lines)) == list(Translator(ours).translate(lines))


def test_a_translator_packs_only_a_model_that_it_loads(trained, trained_run):
    model, tokenizer = trained
    given = Translator(TorchEngine(model, tokenizer)).engine.model
    assert type(given.model.decoder.layers[0].fc1) is nn.Linear
    loaded = Translator(str(trained_run)).engine.model
    expected = PackedLinear if can_multiply(torch.float32) else nn.Linear
    assert type(loaded.model.decoder.layers[0].fc1) is expected


def test_a_line_that_fails_becomes_empty_with_ctranslate2(exported, caplog):
    translator = Translator(exported, engine="ctranslate2")
    with caplog.at_level(logging.WARNING):
        found = list(translator.translate([SOURCES[0], "\udfff", SOURCES[1]]))
    assert [bool(text) for text in found] == [True, False, True]
    assert translator.failed == [2]


def test_ctranslate2_translates_a_file(exported, ours, tmp_path):
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
    ("changes", "limits"),
    [
        ({"max_tokens_beyond_source": 3}, [5, 9]),
        ({"max_tokens_beyond_source": 3, "max_length": 8}, [5, 7]),
        ({"max_tokens_beyond_source": 3, "max_new_tokens": 4}, [4, 4]),
        ({"max_tokens_beyond_source": None, "max_length": 8}, [7, 7]),
        ({"max_tokens_beyond_source": None, "max_length": None}, [19, 19]),
    ],
)
def test_length_limit_equals_that_of_generate(exported, trained, changes, limits):
    """Of sources of 2 and 6 tokens; transformers' own limit is 20, its start token included."""
    engine = CTranslate2Engine(exported, **changes)
    assert [most_new_tokens(engine.decoding, tokens) for tokens in (2, 6)] == limits


@pytest.mark.parametrize("beyond", [-3, -1, 0])
def test_both_engines_stop_at_the_same_token(exported, ours, beyond):
    rows = ours.tokenizer(SOURCES).input_ids
    changes = {"max_tokens_beyond_source": beyond}
    ours.generate_kwargs.update(changes)
    found = CTranslate2Engine(exported, **changes).translate_rows(rows)
    assert found == ours.translate_rows(rows)


@pytest.mark.parametrize(
    "changes",
    [{"no_repeat_ngram_size": 1}, {"length_penalty": 3.0}, {"length_penalty": 0.01}],
    ids=str,
)
def test_search_options_mean_the_same_in_both_engines(exported, ours, changes):
    rows = ours.tokenizer(["one one one", "two", "three three three three"]).input_ids
    ours.generate_kwargs.update(changes, renormalize_logits=True)
    assert CTranslate2Engine(exported, **changes).translate_rows(rows) == ours.translate_rows(rows)


@pytest.fixture(scope="module")
def exported_empty(trained, tmp_path_factory):
    """A model whose translations are empty, and its export."""
    pytest.importorskip("ctranslate2")
    model, tokenizer = copy.deepcopy(trained[0]), trained[1]
    with torch.no_grad():  # the last layer norm then returns the embedding of the end token
        norm = model.model.decoder.layers[-1].final_layer_norm
        norm.weight.zero_()
        norm.bias.copy_(1000 * model.get_input_embeddings().weight[tokenizer.eos_token_id])
    folder = tmp_path_factory.mktemp("empty")
    model.save_pretrained(folder / "torch")
    tokenizer.save_pretrained(folder / "torch")
    options = {"model": str(folder / "torch"), "output": str(folder / "ct2")}
    return model, export(ExportOptions(**options))


@pytest.mark.parametrize("changes", [{}, {"min_new_tokens": 2}, {"min_length": 3}], ids=str)
def test_both_engines_obey_the_minimum_length_which_is_0_by_default(
    exported_empty, trained, changes
):
    model, folder = exported_empty
    rows = trained[1](SOURCES[:3]).input_ids
    found = CTranslate2Engine(folder, **changes).translate_rows(rows)
    settings = {"length_penalty_form": "power", "early_stopping": False}
    assert found == TorchEngine(model, trained[1], **settings, **changes).translate_rows(rows)
    assert all(bool(text) == bool(changes) for text in found)


def test_bad_words_ids_are_obeyed(exported, ours):
    rows = ours.tokenizer(SOURCES).input_ids
    banned = [[ours.tokenizer(text).input_ids[0]] for text in (" zwei", "zwei")]
    changes = {"bad_words_ids": banned, "renormalize_logits": True}
    ours.generate_kwargs.update(changes)
    found = CTranslate2Engine(exported, **changes).translate_rows(rows)
    assert found == ours.translate_rows(rows)
    assert found != CTranslate2Engine(exported).translate_rows(rows)
    assert "zwei" not in " ".join(found)


def test_an_option_that_ctranslate2_does_not_have_is_refused(exported):
    with pytest.raises(ValueError, match="CTranslate2 does not support top_k, only bad_words"):
        CTranslate2Engine(exported, top_k=3)
    for change in ({"length_penalty_form": "gnmt"}, {"early_stopping": "never"}):
        with pytest.raises(ValueError, match=f"does not support {next(iter(change))}, only"):
            CTranslate2Engine(exported, **change)
    CTranslate2Engine(exported, length_penalty_form="power")  # as its search is


def test_each_engine_refuses_a_folder_of_the_other(exported, trained_run, tmp_path):
    with pytest.raises(ValueError, match="is no export for CTranslate2: use hf-vanilla export"):
        CTranslate2Engine(trained_run)
    with pytest.raises(ValueError, match="is a model for CTranslate2: add --engine"):
        load_translator(str(exported))
    (tmp_path / "decoder.onnx").touch()
    with pytest.raises(ValueError, match="is a model for ONNX Runtime: add --engine"):
        load_translator(str(tmp_path))


def test_the_exported_vocabulary_has_the_tokens_in_the_order_of_their_ids(exported, trained):
    tokens = json.loads((exported / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = trained[1]("f\u00fcnf \0").input_ids
    assert [tokens[i] for i in ids] == trained[1].convert_ids_to_tokens(ids)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[ctranslate2\]'"):
        import_ctranslate2()
