"""`save_with_code` alone writes code, and nothing points at code that is not there."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from hf_vanilla import (
    VanillaEncoderModel,
    VanillaFairseqTokenizer,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaModel,
)
from hf_vanilla.models.pipeline_vanilla import CUSTOM_PIPELINES
from hf_vanilla.models.saving_vanilla import save_with_code

POINTERS = {"auto_map", "custom_pipelines"}


def config_in(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


@pytest.fixture
def coded(tiny_model, tmp_path):
    save_with_code(tiny_model, tmp_path / "coded")
    return tmp_path / "coded"


def test_code_is_written_only_while_it_is_asked_for(tiny_model, coded, tmp_path):
    tiny_model.save_pretrained(tmp_path / "plain")
    assert {"modeling_vanilla.py", "pipeline_vanilla.py"} <= {p.name for p in coded.glob("*.py")}
    assert not list((tmp_path / "plain").glob("*.py"))
    written = config_in(coded)
    auto_map = written.pop("auto_map")
    assert auto_map.keys() == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert written.pop("custom_pipelines") == CUSTOM_PIPELINES
    assert written == config_in(tmp_path / "plain")


@pytest.mark.parametrize(
    "kind",
    [VanillaForConditionalGeneration, VanillaModel, VanillaEncoderModel, VanillaForCausalLM],
)
def test_every_file_that_is_named_exists(tiny_config, tmp_path, kind):
    save_with_code(kind(tiny_config), tmp_path)
    written = config_in(tmp_path)
    impls = [told["impl"] for told in written.get("custom_pipelines", {}).values()]
    for name in [*written["auto_map"].values(), *impls]:
        assert (tmp_path / f"{name.split('.')[0]}.py").is_file(), name


@pytest.mark.parametrize("kind", [VanillaForConditionalGeneration, VanillaModel])
def test_a_model_read_from_there_and_saved_without_code_points_at_none(coded, tmp_path, kind):
    model = kind.from_pretrained(coded)
    assert model.config.custom_pipelines == CUSTOM_PIPELINES
    model.save_pretrained(tmp_path / "plain")
    assert not POINTERS & config_in(tmp_path / "plain").keys()


def test_the_package_is_preferred_to_the_saved_code(coded):
    model = AutoModelForSeq2SeqLM.from_pretrained(coded)
    assert type(model) is VanillaForConditionalGeneration


def test_an_error_while_saving_restores_the_classes(tiny_model, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("the disk is full")

    monkeypatch.setattr(tiny_model, "save_pretrained", fail)
    with pytest.raises(OSError, match="full"):
        save_with_code(tiny_model, tmp_path)
    assert type(tiny_model)._auto_class is type(tiny_model.config)._auto_class is None
    assert not POINTERS & vars(tiny_model.config).keys()


def test_a_model_of_transformers_is_left_as_it_is(tmp_path):
    sizes = {"vocab_size": 11, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 10}
    ends = {"decoder_start_token_id": 10, "eos_token_id": 0, "forced_eos_token_id": 0}
    model = MarianMTModel(MarianConfig(**sizes, **heads, **ends))
    save_with_code(model, tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert not POINTERS & config_in(tmp_path).keys()


def test_a_file_in_the_place_of_the_folder_is_an_error(tiny_model, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match="taken"):
        save_with_code(tiny_model, tmp_path / "taken")


def test_a_tokenizer_that_needs_its_class_takes_it_along(tiny_model, tmp_path):
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    told = {"source_vocab_size": 5, "unk_token": "<unk>"}  # "b" is a word of the target only
    tokenizer = VanillaFairseqTokenizer(tokenizer_object=backend, **told)
    save_with_code(tiny_model, tmp_path, tokenizer)
    there = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(there).__module__.startswith("transformers_modules.")
    assert there("a b").input_ids == tokenizer("a b").input_ids == [4, 3]
    assert VanillaFairseqTokenizer._auto_class is None
