"""Loading a translator in float32, bfloat16 or int8, and the command that writes int8."""

import logging
import random

import pytest
import small_run
import torch
from transformers import AutoModelForSeq2SeqLM, pipeline

from hf_vanilla import (
    Translator,
    VanillaInt8Config,
    VanillaTranslationPipeline,
    demo_model,
    load_translator,
)
from hf_vanilla.convert.export import ExportOptions, QuantizeOptions, export, quantize_folder
from hf_vanilla.data.corpus import number_words
from hf_vanilla.hub.card import languages_of
from hf_vanilla.models.packing_vanilla import multiplies_bfloat16
from hf_vanilla.models.quantization_vanilla import is_quantized
from hf_vanilla.models.search_vanilla_conditions import is_as_built
from hf_vanilla.text import loading
from hf_vanilla.text.evaluation import EvaluateOptions
from hf_vanilla.text.loading import load_in, require_float

PAIRS = small_run.digit_pairs()
SOURCES = [source for source, _ in PAIRS[:19]]


@pytest.mark.slow
def test_batch_mates_do_not_change_200_translations_in_bfloat16():
    draw = random.Random(0)
    sentences = [number_words(number)["source"] for number in draw.sample(range(10**6), 200)]
    few, many = (
        list(
            Translator(demo_model(), dtype="bfloat16", tokens_per_batch=tokens).translate(sentences)
        )
        for tokens in (60, 4096)
    )
    assert few == many


@pytest.fixture(scope="module")
def int8_folder(trained_run, tmp_path_factory):
    output = tmp_path_factory.mktemp("int8") / "model"
    return quantize_folder(QuantizeOptions(model=str(trained_run), output=str(output)))


@pytest.fixture
def instructions(monkeypatch):
    """Every dtype is used, also on a processor without instructions for it."""
    monkeypatch.setattr(loading, "can_multiply", lambda dtype: True)
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: True)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_trained_model_translates_the_same_in_every_dtype(trained_run, trained, dtype):
    translator = Translator(str(trained_run), dtype=dtype)
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}[dtype]
    assert translator.engine.model.dtype == kind
    assert is_quantized(translator.engine.model) == (dtype == "int8")
    assert is_as_built(translator.engine.model)  # so our search runs
    # it has learned its training pairs by heart, so small errors change nothing
    expected = list(Translator(str(trained_run)).translate(SOURCES))
    assert list(translator.translate(SOURCES)) == expected


@pytest.mark.usefixtures("instructions")
def test_a_quantized_folder_loads_as_int8_and_equals_a_model_quantized_while_loading(
    trained_run, int8_folder
):
    saved, _ = load_translator(str(int8_folder))
    made, _ = load_translator(str(trained_run), dtype="int8")
    ids = torch.tensor([[5, 9, 3, 1]])
    first, second = (m(input_ids=ids, decoder_input_ids=ids).logits for m in (saved, made))
    assert torch.equal(first, second)
    again, _ = load_translator(str(int8_folder), dtype="int8")
    assert is_quantized(again)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (int8_folder, trained_run)]
    assert sizes[0] < 0.5 * sizes[1]


def test_a_quantized_folder_keeps_the_card_and_says_that_it_is_int8(trained_run, int8_folder):
    card = (int8_folder / "README.md").read_text()
    made = f"\nint8 weights, made from {trained_run.name} by `hf-vanilla quantize`."
    assert made in card
    before = (trained_run / "README.md").read_text()
    assert set(before.splitlines()) - set(card.splitlines()) <= set(
        before.split("model-index:")[-1].split("---")[0].splitlines()
    )
    assert languages_of(str(int8_folder)) == languages_of(str(trained_run))


@pytest.mark.usefixtures("instructions")
def test_the_pipeline_translates_in_int8(trained_run, int8_folder):
    expected = list(Translator(str(int8_folder)).translate(SOURCES[:3]))
    by_name = pipeline("vanilla-translation", model=str(int8_folder))
    while_loading = pipeline(
        "vanilla-translation",
        model=str(trained_run),
        model_kwargs={"quantization_config": VanillaInt8Config()},
    )
    ready = VanillaTranslationPipeline(*load_translator(str(trained_run), dtype="int8"))
    for translator in (by_name, while_loading, ready):
        assert is_quantized(translator.model)
        assert [found["translation_text"] for found in translator(SOURCES[:3])] == expected


def test_without_instructions_a_float_model_stays_float_and_one_warning_says_so(
    trained_run, monkeypatch, caplog
):
    monkeypatch.setattr(loading, "can_multiply", lambda dtype: False)
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: False)
    for dtype in ("int8", "bfloat16"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            model, _ = load_translator(str(trained_run), dtype=dtype)
        assert [record.message for record in caplog.records] == [
            f"this processor has no instructions for {dtype}: computing in float32"
        ]
        assert model.dtype == torch.float32
        assert not is_quantized(model)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": False, "avx2": True}, False),
        ({}, True),  # torch cannot tell
    ],
)
def test_bfloat16_is_looked_up_among_the_capabilities(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert multiplies_bfloat16() is expected


# --- what is refused ---------------------------------------------------------------------------


def test_an_unknown_dtype_is_refused_before_anything_is_loaded():
    expected = "dtype='int4': choose one of float32, bfloat16, int8"
    with pytest.raises(ValueError, match=expected):
        Translator("no-folder", dtype="int4")
    with pytest.raises(ValueError, match=expected):
        load_translator("no-folder", dtype="int4")
    with pytest.raises(ValueError, match=expected):
        EvaluateOptions(model="no-folder", source="s", reference="r", dtype="int4")


def test_a_dtype_needs_the_torch_engine_and_a_folder(trained):
    with pytest.raises(ValueError, match=r"dtype='int8' is for the engine torch: .*export"):
        Translator("no-folder", engine="ctranslate2", dtype="int8")
    with pytest.raises(ValueError, match="dtype: a Translator of an engine takes no options"):
        Translator(Translator.__new__(Translator), dtype="int8")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_device_is_a_name_or_torchs(device, trained_run):
    for dtype in ("float32", "int8"):
        translator = Translator(str(trained_run), dtype=dtype, device=device)
        assert translator.engine.model.device.type == "cpu"
    with pytest.raises(ValueError, match="dtype='int8' is for CPUs"):
        Translator(str(trained_run), dtype="int8", device="cuda")
    with pytest.raises(ValueError, match=r"device='foo': .* give another, such as cpu"):
        Translator(str(trained_run), device="foo")


def test_int8_on_a_gpu_is_refused(trained_run, int8_folder):
    gpu = torch.device("cuda")
    with pytest.raises(ValueError, match=r"dtype='int8' is for CPUs.*'cuda'.*dtype='bfloat16'"):
        load_in(str(trained_run), "int8", gpu)
    with pytest.raises(ValueError, match=r"has int8 weights; int8 is for CPUs.*'cuda'"):
        load_in(str(int8_folder), None, gpu)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_weights_do_not_become_floats(int8_folder, dtype):
    with pytest.raises(ValueError, match=f"has int8 weights: for {dtype}, give the float"):
        load_translator(str(int8_folder), dtype=dtype)


def test_int8_weights_are_not_quantized_exported_or_trained(int8_folder, tmp_path):
    target = str(tmp_path / "new")
    with pytest.raises(ValueError, match="has int8 weights"):
        quantize_folder(QuantizeOptions(model=str(int8_folder), output=target))
    with pytest.raises(ValueError, match="has int8 weights: give the float model"):
        export(ExportOptions(model=str(int8_folder), output=target))
    model = AutoModelForSeq2SeqLM.from_pretrained(int8_folder)
    with pytest.raises(ValueError, match="give the float model"):
        require_float(model, "it")
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_an_existing_output_is_not_overwritten(trained_run, int8_folder):
    with pytest.raises(OSError, match="exists and is not an empty folder"):
        quantize_folder(QuantizeOptions(model=str(trained_run), output=str(int8_folder)))
