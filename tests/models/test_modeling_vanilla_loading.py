"""Checkpoints of every kind: in shards, on other devices, with tensors missing, broken, hostile."""

import json
import os
import pickle

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from reference import assert_same
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

B, S, T = 3, 7, 5
SIZES = {
    "vocab_size": 43,
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
}
OWN_TABLES = {"decoder_vocab_size": 37, "share_encoder_decoder_embeddings": False}
SHARINGS = {
    "one table": {},
    "output apart": {"tie_word_embeddings": False},
    "source apart": OWN_TABLES,
    "three tables": {**OWN_TABLES, "tie_word_embeddings": False},
}
EACH_SHARING = pytest.mark.parametrize("sharing", SHARINGS)
WEIGHT = "model.decoder.layers.1.fc1.weight"


def model_with(**changes):
    return VanillaForConditionalGeneration(VanillaConfig(**{**SIZES, **changes})).eval()


def load(folder, **settings):
    return VanillaForConditionalGeneration.from_pretrained(folder, **settings)


def logits_of(model):
    generator = torch.Generator().manual_seed(29)
    ids = torch.randint(2, 37, (2, B, S), generator=generator)
    with torch.no_grad():
        return model(input_ids=ids[0], decoder_input_ids=ids[1, :, :T]).logits


@pytest.fixture
def model():
    return model_with()


@pytest.fixture
def saved(model, tmp_path):
    model.save_pretrained(tmp_path)
    return tmp_path


# --- shards ------------------------------------------------------------------------------------


def shards_in(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {p.name for p in folder.glob("*.safetensors")}
    return index


@EACH_SHARING
def test_a_model_in_shards_comes_back_exactly_with_its_tables_tied(tmp_path, sharing):
    model = model_with(**SHARINGS[sharing])
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(set(shards_in(tmp_path)["weight_map"].values())) > 3
    loaded, report = load(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert_same(logits_of(loaded), logits_of(model))
    ours = {name for name, _ in model.named_parameters()}  # each shared tensor once
    assert {name for name, _ in loaded.named_parameters()} == ours


@EACH_SHARING
def test_a_shared_table_is_stored_once_over_all_shards(tmp_path, sharing):
    model = model_with(**SHARINGS[sharing])
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    index = shards_in(tmp_path)
    assert len(index["weight_map"]) == len(list(model.parameters()))
    assert index["metadata"]["total_size"] == 4 * sum(w.numel() for w in model.parameters())
    stored = [load_file(path) for path in tmp_path.glob("*.safetensors")]
    names = [name for shard in stored for name in shard]
    assert sorted(names) == sorted(index["weight_map"])


def test_a_missing_shard_is_named(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(OSError, match=gone.name):
        load(tmp_path)


# --- precision and devices ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_auto_takes_the_precision_of_the_checkpoint(model, tmp_path, dtype):
    model.to(dtype).save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype="auto")
    assert {weight.dtype for weight in loaded.parameters()} == {dtype}
    assert_same(logits_of(loaded), logits_of(model))


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"], ids=str)
def test_a_named_precision_rounds_every_weight_and_keeps_the_tables_tied(model, saved, dtype):
    loaded = load(saved, dtype=dtype)
    expected = {name: weight.bfloat16() for name, weight in model.state_dict().items()}
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(loaded.state_dict()[name], w) for name, w in expected.items())
    assert loaded.lm_head.weight is loaded.model.shared.weight


@EACH_SHARING
@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}], ids=str)
def test_a_map_of_devices_changes_no_number(tmp_path, sharing, device_map):
    model = model_with(**SHARINGS[sharing])
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, device_map=device_map)
    assert {weight.device.type for weight in loaded.parameters()} == {"cpu"}
    assert_same(logits_of(loaded), logits_of(model))


@EACH_SHARING
def test_what_does_not_fit_into_memory_is_left_on_disk_and_changes_no_number(
    tmp_path, sharing, tmp_path_factory
):
    model = model_with(**SHARINGS[sharing])
    model.save_pretrained(tmp_path)
    folder = tmp_path_factory.mktemp("offloaded")
    settings = {"device_map": "auto", "max_memory": {"cpu": "17KB"}, "offload_folder": folder}
    loaded = load(tmp_path, **settings)
    assert set(loaded.hf_device_map.values()) == {"cpu", "disk"}
    assert loaded.model.decoder.layers[1].fc1.weight.device.type == "meta"
    assert_same(logits_of(loaded), logits_of(model))


@EACH_SHARING
@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_a_model_without_memory_takes_its_weights_later(sharing, kind):
    changes = {**SHARINGS[sharing], "position_embedding_type": kind}
    model = model_with(**changes)
    with torch.device("meta"):
        empty = model_with(**changes)
    assert {weight.device.type for weight in empty.parameters()} == {"meta"}
    empty.load_state_dict(model.state_dict(), assign=True)
    empty.tie_weights()
    # positions are computed or loaded: no table is left behind on the meta device
    assert_same(logits_of(empty), logits_of(model))
    assert len(list(empty.parameters())) == len(list(model.parameters()))


def test_a_model_without_memory_can_be_filled_with_fresh_weights():
    with torch.device("meta"):
        empty = model_with()
    filled = empty.to_empty(device="cpu")
    for weight in filled.parameters():
        weight.data.fill_(float("nan"))
    filled.init_weights()
    assert logits_of(filled).isfinite().all()
    assert logits_of(filled).std() > 0


def test_a_state_dict_can_be_given_in_place_of_a_file(model):
    loaded = VanillaForConditionalGeneration.from_pretrained(
        None, config=model.config, state_dict=model.state_dict()
    )
    assert_same(logits_of(loaded), logits_of(model))


# --- other tensors than expected ---------------------------------------------------------------


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_missing_tensor_is_reported_by_name_and_drawn_anew(saved, model, caplog):
    rewrite(saved, lambda tensors: tensors.pop(WEIGHT))
    loaded, report = load(saved, output_loading_info=True)
    assert report["missing_keys"] == {WEIGHT}
    assert WEIGHT in caplog.text
    assert "MISSING" in caplog.text
    assert loaded.get_parameter(WEIGHT).isfinite().all()
    assert not torch.equal(loaded.get_parameter(WEIGHT), model.get_parameter(WEIGHT))
    # Glorot's range, as if the model were new: sqrt(6 / (12 + 31))
    assert 0.3 < loaded.get_parameter(WEIGHT).abs().max() < 0.374


def test_a_missing_table_is_reported_by_name(saved, caplog):
    rewrite(saved, lambda tensors: tensors.pop("model.shared.weight"))
    _, report = load(saved, output_loading_info=True)
    assert "model.shared.weight" in report["missing_keys"]
    assert "model.shared.weight" in caplog.text


def test_a_surplus_tensor_is_reported_by_name_and_left_out(saved, model, caplog):
    rewrite(saved, lambda tensors: tensors.update({"model.stranger": torch.ones(3)}))
    loaded, report = load(saved, output_loading_info=True)
    assert report["unexpected_keys"] == {"model.stranger"}
    assert "model.stranger" in caplog.text
    assert "UNEXPECTED" in caplog.text
    assert_same(logits_of(loaded), logits_of(model))


def test_a_tensor_of_another_shape_is_refused_by_name_with_both_shapes(saved, caplog):
    rewrite(saved, lambda tensors: tensors.update({WEIGHT: torch.ones(2, 3)}))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(saved)
    assert WEIGHT in caplog.text
    assert "[2, 3]" in caplog.text
    assert "[31, 12]" in caplog.text


def test_a_tensor_of_another_shape_is_drawn_anew_on_request(saved):
    rewrite(saved, lambda tensors: tensors.update({WEIGHT: torch.ones(2, 3)}))
    loaded, report = load(saved, ignore_mismatched_sizes=True, output_loading_info=True)
    assert {name for name, *_ in report["mismatched_keys"]} == {WEIGHT}
    assert loaded.get_parameter(WEIGHT).shape == (31, 12)
    assert logits_of(loaded).isfinite().all()


# --- broken files ------------------------------------------------------------------------------


def header_of(raw):
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def with_header(raw, header):
    written = json.dumps(header).encode()
    body = raw[8 + int.from_bytes(raw[:8], "little") :]
    return len(written).to_bytes(8, "little") + written + body


def offset_moved(raw):
    header = header_of(raw)
    header[WEIGHT]["data_offsets"][1] += 4
    return with_header(raw, header)


def tensors_overlap(raw):
    header = header_of(raw)
    header["model.encoder.layers.0.fc1.bias"]["data_offsets"] = [0, 29 * 4]
    return with_header(raw, header)


BROKEN = {
    "end cut off": lambda raw: raw[:-1000],
    "header cut off": lambda raw: raw[:100],
    "empty": lambda raw: b"",
    "header too long": lambda raw: (2**60).to_bytes(8, "little") + raw[8:],
    "offset moved": offset_moved,
    "tensors overlap": tensors_overlap,
    "bytes behind the end": lambda raw: raw + b"\0" * 8,
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_file_is_refused(saved, damage):
    file = saved / "model.safetensors"
    file.write_bytes(BROKEN[damage](file.read_bytes()))
    with pytest.raises(SafetensorError, match="deserializing header"):
        load(saved)


def test_a_header_that_turns_a_matrix_over_is_refused(saved, caplog):
    file = saved / "model.safetensors"
    header = header_of(file.read_bytes())
    header[WEIGHT]["shape"] = [12, 31]
    file.write_bytes(with_header(file.read_bytes(), header))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(saved)
    assert WEIGHT in caplog.text


def test_a_folder_without_weights_says_which_files_it_wants(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        load(saved)


# --- pickles -----------------------------------------------------------------------------------


class Hostile:
    """Unpickling it makes a folder."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def pickled(value, path):
    path.write_bytes(pickle.dumps(value, protocol=2))


def saved_by_torch(value, path):
    torch.save(value, path)


def saved_by_old_torch(value, path):
    torch.save(value, path, _use_new_zipfile_serialization=False)


EACH_WAY = pytest.mark.parametrize("save", [pickled, saved_by_torch, saved_by_old_torch])


@EACH_WAY
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "in a shard"])
def test_code_in_a_pickle_is_refused_and_never_run(saved, save, name):
    trace = str(saved / "trace")
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    if name == "in a shard":
        name = "pytorch_model-00001-of-00001.bin"
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
        (saved / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    save({**tensors, "hostile": Hostile(trace)}, saved / name)
    with pytest.raises(
        (pickle.UnpicklingError, SafetensorError), match=r"Weights only load failed|header"
    ):
        load(saved)
    assert not os.path.exists(trace)
    if save is pickled:  # the trap works: whoever unpickles it is caught
        pickle.loads((saved / name).read_bytes())
        assert os.path.exists(trace)


def test_a_pickle_beside_safetensors_is_not_even_opened(saved, model):
    pickled(Hostile(str(saved / "trace")), saved / "pytorch_model.bin")
    assert_same(logits_of(load(saved)), logits_of(model))
    assert not (saved / "trace").exists()


def test_pickles_can_be_ruled_out_altogether(saved):
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    torch.save(tensors, saved / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        load(saved, use_safetensors=True)


def test_an_old_checkpoint_of_tensors_alone_still_loads(saved, model):
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    torch.save(tensors, saved / "pytorch_model.bin")
    loaded = load(saved)
    assert_same(logits_of(loaded), logits_of(model))
    assert loaded.lm_head.weight is loaded.model.shared.weight


# --- configs -----------------------------------------------------------------------------------


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("auto", [False, True], ids=["own class", "auto class"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 13}, "d_model=13 is not a multiple of encoder_attention_heads=3"),
        ({"decoder_layers": 0}, "decoder_layers=0: give a positive number"),
        ({"vocab_size": "43"}, r"'vocab_size'.*expected int.*'43'"),
        ({"activation_function": "rely"}, "activation_function='rely': choose one of .*relu"),
        ({"pad_token_id": 43}, "pad_token_id=43: the vocabulary has the ids 0 to 42"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_built_is_refused_by_value(saved, auto, changes, message):
    edit_config(saved, **changes)
    loader = AutoModelForSeq2SeqLM.from_pretrained if auto else load
    with pytest.raises(StrictDataclassError, match="(?s)" + message):
        loader(saved)


def test_a_config_that_is_no_json_is_named(saved):
    (saved / "config.json").write_text('{"d_model": 12')
    with pytest.raises(OSError, match=r"config\.json' is not a valid JSON file"):
        load(saved)


def test_a_folder_without_a_config_is_refused(saved):
    (saved / "config.json").unlink()
    with pytest.raises((OSError, ValueError), match=r"config\.json"):
        AutoModelForSeq2SeqLM.from_pretrained(saved)


def test_a_folder_without_a_generation_config_gets_the_papers_decoding(saved, model):
    file = saved / "generation_config.json"
    file.unlink()
    loaded = load(saved)
    assert loaded.generation_config == model.generation_config
    assert loaded.generation_config.length_penalty_form == "gnmt"
    # a generation config that the user made of the model config is no missing one
    plain = GenerationConfig.from_model_config(model.config)
    assert load(saved, generation_config=plain).generation_config.num_beams is None
    loaded.generation_config = plain
    loaded.save_pretrained(saved)
    assert file.exists()
    assert load(saved).generation_config.num_beams is None


def test_the_config_of_another_architecture_is_reported(saved, caplog):
    edit_config(saved, model_type="bart")
    load(saved)
    assert "a model of type `bart` to instantiate a model of type `vanilla`" in caplog.text


def test_a_model_type_that_nobody_knows_is_refused(saved):
    edit_config(saved, model_type="chocolate")
    with pytest.raises(ValueError, match="`chocolate` but Transformers does not recognize"):
        AutoModelForSeq2SeqLM.from_pretrained(saved)


def test_a_config_that_disagrees_with_the_weights_is_refused(saved, caplog):
    edit_config(saved, encoder_ffn_dim=23)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(saved)
    assert "model.encoder.layers.0.fc1.weight" in caplog.text
