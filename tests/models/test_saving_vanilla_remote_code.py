"""A saved model works where this package is not installed: its files travel with the weights."""

import json
from pathlib import Path

import pytest

import hf_vanilla

pytestmark = pytest.mark.slow

SAVE = """
import sys, torch
torch.set_num_threads(1)
from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla import VanillaTokenizer, quantize, save_with_code, train_tokenizer
VanillaConfig.register_for_auto_class()
VanillaForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
VanillaTokenizer.register_for_auto_class("AutoTokenizer")
torch.manual_seed(17)
tokenizer = train_tokenizer(["ein Haus am See", "a house by the lake"], vocab_size=271)
config = VanillaConfig(
    vocab_size=len(tokenizer), d_model=12, encoder_layers=2, encoder_attention_heads=3,
    encoder_ffn_dim=29, decoder_layers=3, decoder_attention_heads=2, decoder_ffn_dim=31,
)
model = VanillaForConditionalGeneration(config)
model.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
save_with_code(quantize(model), sys.argv[1] + "/int8", tokenizer)
"""

# the same lines for both: once with the package, once where importing it fails
USE = """
import json, sys, torch
folder, has_package = sys.argv[1], sys.argv[2] == "with"
if not has_package:
    sys.modules["hf_vanilla"] = None
torch.set_num_threads(1)
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
if has_package:
    import hf_vanilla
trust = {} if has_package else {"trust_remote_code": True}
tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
batch = tokenizer(["ein Haus </s>", "das große Haus am See"], padding=True, return_tensors="pt")
model = AutoModelForSeq2SeqLM.from_pretrained(folder, **trust)
small = AutoModelForSeq2SeqLM.from_pretrained(folder + "/int8", **trust)
small.save_pretrained(folder + "/again " + sys.argv[2])  # with its code where it came with it
with torch.no_grad():
    labels = batch["input_ids"]
    outputs = model(**batch, labels=labels)
    small_logits = small(**batch, labels=labels).logits
found = model.generate(**batch, output_scores=True, return_dict_in_generate=True)
json.dump(
    {
        "modules": [type(thing).__module__ for thing in (model, tokenizer, model.config)],
        "ids": batch["input_ids"].tolist(),
        "logits": outputs.logits.double().tolist(),
        "int8 logits": small_logits.double().tolist(),
        "int8": str(small.lm_head.weight.dtype),
        "loss": outputs.loss.item(),
        "sequences": found.sequences.tolist(),
        "scores": found.sequences_scores.tolist(),
    },
    open(sys.argv[3], "w"),
)
"""


@pytest.fixture(scope="module")
def both_sides(program, program_without_package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("travel")
    environment = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folder / "modules")}
    told = {"environment": environment, "check": True}
    program("python", "-c", SAVE, folder / "model", **told)
    results = {}
    for side, run in (("with", program), ("without", program_without_package)):
        run("python", "-c", USE, folder / "model", side, folder / side, **told)
        results[side] = json.loads((folder / side).read_text())
    return folder / "model", results


def test_only_named_files_are_saved_beside_the_weights_and_unchanged(both_sides):
    folder, _ = both_sides
    home = Path(hf_vanilla.__file__).parent / "models"
    travelers = {path.name for path in folder.glob("*.py")}
    assert {
        "configuration_vanilla.py",
        "modeling_vanilla.py",
        "tokenization_vanilla.py",
    } <= travelers
    for name in travelers:
        assert "_vanilla" in name
        assert (folder / name).read_bytes() == (home / name).read_bytes()


def test_each_side_ran_its_own_code(both_sides):
    _, results = both_sides
    assert all(name.startswith("hf_vanilla.") for name in results["with"]["modules"])
    assert all(name.startswith("transformers_modules.") for name in results["without"]["modules"])


def test_without_the_package_every_number_is_the_same(both_sides):
    _, results = both_sides
    for what in ("ids", "logits", "loss", "sequences", "int8", "int8 logits"):
        assert results["without"][what] == results["with"][what], what
    # transformers' search and ours sum in another order
    assert results["without"]["scores"] == pytest.approx(results["with"]["scores"], rel=1e-6)
    assert results["with"]["int8"] == "torch.int8"


def test_a_translation_model_carries_its_own_code_only(both_sides):
    """No search, ensemble, constraint or int8: what the model and its pipeline compute with."""
    folder, _ = both_sides
    files = {path.stem: len(path.read_text().splitlines()) for path in folder.glob("*_vanilla.py")}
    files.pop("tokenization_vanilla")  # registered above by hand
    assert len(files) <= 13
    assert sum(files.values()) <= 2800
    of_int8 = {path.stem for path in (folder / "int8").glob("*_vanilla.py")}
    assert of_int8 - {"tokenization_vanilla"} - files.keys() == {
        "quantization_vanilla",
        "onednn_vanilla",
    }
    again = {path.stem for path in (folder / "again without").glob("*.py")}
    assert again == of_int8 - {"tokenization_vanilla"}
    assert not list((folder / "again with").glob("*.py"))
    maps = [
        json.loads((folder / name / "config.json").read_text())["auto_map"]
        for name in ("int8", "again without")
    ]
    assert maps[0] == maps[1]
    assert maps[0]["AutoModelForSeq2SeqLM"].startswith("quantization_vanilla.")
