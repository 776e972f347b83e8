"""What the tools of the ecosystem do with the model: compile, export, cast, adapt, quantize."""

import copy
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from torch.export import Dim
from torch.testing import assert_close
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from hf_vanilla import VanillaConfig, VanillaForCausalLM, VanillaForConditionalGeneration
from hf_vanilla.text.loading import load_translator

B, S, T = 4, 7, 5
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")


@pytest.fixture
def model():
    config = VanillaConfig(
        vocab_size=43,
        d_model=24,
        encoder_layers=2,
        encoder_attention_heads=3,
        encoder_ffn_dim=29,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=31,
        dropout=0.0,
    )
    return VanillaForConditionalGeneration(config).eval()


def padded_batch(rows=B, source=S, target=T):
    """One sentence padded on the right, one on the left, the others whole."""
    batch = {
        "input_ids": torch.randint(2, 43, (rows, source)),
        "attention_mask": torch.ones(rows, source, dtype=torch.long),
        "decoder_input_ids": torch.randint(2, 43, (rows, target)),
    }
    batch["attention_mask"][0, source - 2 :] = 0
    batch["attention_mask"][1, :3] = 0
    batch["input_ids"] *= batch["attention_mask"]
    return batch


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    torch._dynamo.reset()


# --- attention implementations -------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles flex_attention by g++")
@torch.no_grad()  # on a CPU, flex_attention has no backward pass
def test_flex_attention_equals_eager_with_padding_on_either_side(model):
    batch = padded_batch()
    model.set_attn_implementation("eager")
    expected = model(**batch).logits
    model.set_attn_implementation("flex_attention")
    # a softmax in blocks rounds otherwise than one over the row
    assert_close(model(**batch).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_implementation_can_be_chosen_at_any_time_for_every_layer(model, implementation):
    batch = padded_batch()
    expected = model(**batch).logits
    model.set_attn_implementation(implementation)
    attentions = [part for part in model.modules() if hasattr(part, "q_proj")]
    assert {part.config._attn_implementation for part in attentions} == {implementation}
    outputs = model(**batch, output_attentions=implementation == "eager")
    assert_close(outputs.logits, expected, rtol=1e-5, atol=1e-5)
    assert (outputs.cross_attentions is not None) == (implementation == "eager")


def test_an_implementation_that_is_not_installed_is_refused_and_changes_nothing(model):
    if torch.cuda.is_available():
        pytest.skip("flash_attention_2 may be there")
    before = model.config._attn_implementation
    with pytest.raises((ImportError, ValueError), match=r"(?i)flash"):
        model.set_attn_implementation("flash_attention_2")
    assert model.config._attn_implementation == before
    assert model(**padded_batch()).logits.isfinite().all()


# --- torch.compile and torch.export --------------------------------------------------------------


@pytest.mark.parametrize("has_mask", [True, pytest.param(False, marks=pytest.mark.release)])
def test_the_forward_pass_compiles_to_one_graph(model, has_mask):
    batch = padded_batch()
    if not has_mask:
        del batch["attention_mask"]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(**batch).logits, model(**batch).logits, rtol=1e-6, atol=1e-6)


def test_a_training_step_compiles_to_one_graph(model):
    batch = padded_batch()
    batch["labels"] = batch.pop("decoder_input_ids")
    model.train()
    model(**batch).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(**batch).loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.release
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++ on a CPU")
@torch.no_grad()
def test_the_compiled_model_computes_the_same(model):
    batch = padded_batch()
    compiled = torch.compile(model, fullgraph=True)
    # fused kernels round in another order
    assert_close(compiled(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-5)


def test_an_exported_program_takes_any_number_and_length_of_sentences(model):
    rows, source, target = Dim("rows"), Dim("source"), Dim("target")
    shapes = {
        "input_ids": {0: rows, 1: source},
        "attention_mask": {0: rows, 1: source},
        "decoder_input_ids": {0: rows, 1: target},
        "use_cache": None,
    }
    sample = padded_batch() | {"use_cache": False}
    program = torch.export.export(model, (), sample, dynamic_shapes=shapes).module()
    for sizes in ((B, S, T), (3, 11, 13), (5, 6, 2)):
        batch = padded_batch(*sizes) | {"use_cache": False}
        assert_close(program(**batch).logits, model(**batch).logits, rtol=1e-5, atol=1e-5)


# --- lower precision -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_training_step_under_autocast_is_finite_and_near(model, dtype, implementation):
    batch = padded_batch()
    batch["labels"] = batch.pop("decoder_input_ids")
    batch["attention_mask"][3] = 0  # a source of padding only
    model.set_attn_implementation(implementation)
    model.train()
    expected = model(**batch).loss
    with torch.autocast("cpu", dtype=dtype):
        loss = model(**batch).loss
    assert loss.dtype == torch.float32
    assert_close(loss, expected, rtol=0.02, atol=0)  # bfloat16 has 8 bits of mantissa
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_linear_layers_in_int8_decode_on(model):
    batch = padded_batch()
    expected = model(**batch).logits
    with warnings.catch_warnings():  # torch's own way still works and says that torchao is next
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8
        )
    logits = quantized(**batch).logits
    assert not torch.equal(logits, expected)
    # int8 has 7 bits beside the sign; logits have a spread of 1
    assert (logits - expected).abs().max() < 0.3
    del batch["decoder_input_ids"]
    assert quantized.generate(**batch, max_new_tokens=3).shape[0] == B


TORCHAO = """
import sys, torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig
import hf_vanilla
ids = torch.tensor([[5, 6, 7, 1]])
plain = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
quantized = AutoModelForSeq2SeqLM.from_pretrained(
    sys.argv[1], quantization_config=TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
)
weight = quantized.model.encoder.layers[0].fc1.weight
assert "Int8" in type(weight).__name__ or "Quantized" in type(weight).__name__, type(weight)
logits = [m(input_ids=ids, decoder_input_ids=ids).logits for m in (plain, quantized)]
assert 0 < (logits[0] - logits[1]).abs().max() < 0.3
assert quantized.generate(input_ids=ids, max_new_tokens=3).shape[0] == 1
"""


@pytest.mark.slow
def test_torchao_quantizes_while_loading(model, tmp_path):
    pytest.importorskip("torchao", reason="prints on every import: pip install torchao to test it")
    model.save_pretrained(tmp_path)
    command = [sys.executable, "-c", TORCHAO, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


# --- adapters ------------------------------------------------------------------------------------


def test_lora_trains_its_own_weights_only_and_comes_back_from_disk(model, tmp_path):
    peft = pytest.importorskip("peft")
    batch = padded_batch()
    before = model(**batch).logits
    told = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj", "v_proj"], r=2)
    adapted = peft.get_peft_model(copy.deepcopy(model), told).train()
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    # two matrices for each of two projections in 2 encoder and 2 x 2 decoder attentions
    assert len(trained) == 2 * 2 * (2 + 2 * 2)
    assert all("lora_" in name for name in trained)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):
        adapted(**batch, labels=batch["decoder_input_ids"]).loss.backward()
        optimizer.step()
    adapted.eval().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is an adapter of PEFT, without its model"):
        load_translator(str(tmp_path))
    after = adapted(**batch).logits
    assert not torch.equal(after, before)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()
    assert torch.equal(again(**batch).logits, after)
    merged = again.merge_and_unload()
    assert_close(merged(**batch).logits, after, rtol=1e-4, atol=1e-5)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    told = {"max_new_tokens": 5, "num_beams": 1}
    assert torch.equal(merged.generate(**source, **told), adapted.generate(**source, **told))


# --- the Trainer's smoothing ---------------------------------------------------------------------


def test_smoothing_by_the_trainer_is_torchs_and_happens_once(model, tiny_tokenizer, tmp_path):
    model.resize_token_embeddings(len(tiny_tokenizer))
    rows = [tiny_tokenizer(text, text_target=text[::-1]) for text in ("a house", "ein See", "das")]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), label_smoothing_factor=0.3, use_cpu=True, report_to="none"
    )
    collate = DataCollatorForSeq2Seq(tiny_tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, arguments, collate, train_dataset=rows)
    batch = collate(rows)
    loss = trainer.compute_loss(model.train(), dict(batch))
    logits = model(**batch).logits
    labels = batch["labels"].masked_fill(batch["labels"] == tiny_tokenizer.pad_token_id, -100)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=0.3
    )
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)


def test_smoothing_by_the_trainer_looks_one_token_ahead_in_a_language_model(tmp_path):
    config = VanillaConfig(vocab_size=23, d_model=8, decoder_layers=1, decoder_attention_heads=2)
    model, ids = VanillaForCausalLM(config).eval(), torch.randint(2, 23, (2, 5))
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=0.3, use_cpu=True)
    loss = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
    logits, labels = model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.3)
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)
