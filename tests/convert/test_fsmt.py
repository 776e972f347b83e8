"""FSMT folders: logits, search and token ids of the class and tokenizer of transformers."""

import json

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTConfig,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
)

from hf_vanilla.convert.fsmt import FsmtOptions, convert_fsmt

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABTWü,.!?;:'\"-&()0123456789"
MERGES = [("t", "h"), ("th", "e</w>"), ("a", "n"), ("an", "d</w>"), ("i", "n"), ("o", "u")]
TEXTS = [
    "The house and the garden, in the town.",
    "“Wait”… it’s the end！（really）  of 100 things",  # noqa: RUF001
    "über A&B - don't\u200b stop",
]
SIZES = {
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 61,
}


def pieces(extra=()):
    found = [*SPECIAL, *LETTERS, *(letter + "</w>" for letter in LETTERS)]
    merged = ["".join(merge) for merge in MERGES]
    return {piece: i for i, piece in enumerate(dict.fromkeys([*found, *merged, *extra]))}


def write_fsmt(folder, *, is_joint=True, **changes):
    """A folder of a random model, written by the class; returns model and tokenizer."""
    folder.mkdir()
    source, target = pieces(), pieces([] if is_joint else ["ß", "ß</w>", "ou</w>"])
    for name, ids in (("src", source), ("tgt", target)):
        (folder / f"vocab-{name}.json").write_text(json.dumps(ids))
    merges = "".join(f"{a} {b} {9 - i}\n" for i, (a, b) in enumerate(MERGES))
    (folder / "merges.txt").write_text(merges)
    tokenizer = FSMTTokenizer(
        langs=["en", "de"],
        src_vocab_file=str(folder / "vocab-src.json"),
        tgt_vocab_file=str(folder / "vocab-tgt.json"),
        merges_file=str(folder / "merges.txt"),
    )
    config = FSMTConfig(
        langs=["en", "de"],
        src_vocab_size=len(source),
        tgt_vocab_size=len(target),
        **{**SIZES, **changes},
    )
    model = FSMTForConditionalGeneration(config).eval()
    for name, weight in model.named_parameters():
        if "embed_positions" not in name:
            weight.data.normal_(0, 0.3)
    model.generation_config.max_length = 17
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize("kind", ["joint", "separate", "tied"])
def test_logits_search_and_token_ids_are_those_of_transformers(kind, tmp_path):
    changes = {"tie_word_embeddings": True} if kind == "tied" else {}
    is_joint = kind != "separate"
    theirs, tokenizer = write_fsmt(tmp_path / "fsmt", is_joint=is_joint, **changes)
    convert_fsmt(FsmtOptions(input=str(tmp_path / "fsmt"), output=str(tmp_path / "ours")))
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    mine = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert mine(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    read = torch.randint(4, 60, (3, 7))
    read[:, 0] = 2
    with torch.no_grad():
        # with a cache, their decoder has no causal mask
        expected = theirs(**inputs, decoder_input_ids=read, use_cache=False).logits
        found = ours(**inputs, decoder_input_ids=read).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for settings in ({}, {"num_beams": 3, "num_return_sequences": 3}, {"num_beams": 1}):
        expected = theirs.generate(**inputs, **settings)
        found = ours.generate(**inputs, **settings)
        assert found.tolist() == expected.tolist()
    texts = tokenizer.batch_decode(expected, skip_special_tokens=True)
    without_start = mine.batch_decode(found[:, 1:], skip_special_tokens=True)
    assert [t.replace("<unk>", "").split() for t in texts] == [t.split() for t in without_start]


def test_older_files_have_pickled_tensors_and_decoding_in_the_config(tmp_path):
    theirs, _ = write_fsmt(tmp_path / "fsmt")
    folder = tmp_path / "fsmt"
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").unlink()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_beams": 7, "max_length": 23}))
    convert_fsmt(FsmtOptions(input=str(folder), output=str(tmp_path / "ours")))
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert ours.generation_config.num_beams == 7
    assert ours.generation_config.max_length == 23
    assert ours.generation_config.forced_eos_token_id == 2
    weight = theirs.model.decoder.layers[0].encoder_attn.k_proj.weight
    assert torch.equal(ours.model.decoder.layers[0].encoder_attn.k_proj.weight, weight)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": "bart"}', "of type 'bart': give one of type 'fsmt'"),
        ("config.json", '{"model_type": "fsmt", "pad_token_id": 3}', "pad_token_id=3, but <pad>"),
        ("vocab-src.json", '{"<s>": 0}', "must have the ids 0 to"),
        ("vocab-src.json", '{"<s>": 0, "a": null}', "src.json: piece 'a' has the id None: give an"),
        ("vocab-tgt.json", '{"<s>": 0, "a": "1"}', "tgt.json: piece 'a' has the id '1': give an"),
        ("generation_config.json", '{"num_beams": "x"}', "json: generation.num_beams='x': give"),
        (
            "generation_config.json",
            '{"max_new_tokens": "x"}',
            "max_new_tokens='x': give a whole number",
        ),
        ("generation_config.json", '{"pad_token_id": [1]}', r"pad_token_id=\[1\]: give a token id"),
        ("generation_config.json", '{"early_stopping": [1]}', r"early_stopping=\[1\]: give true,"),
        ("generation_config.json", "{", "generation_config.json is damaged"),
        ("generation_config.json", '{"num_beams": 0}', "num_beams=0: give a whole number"),
        (
            "generation_config.json",
            '{"eos_token_id": [2, null]}',
            r"eos_token_id=\[2, None\]: give",
        ),
        ("generation_config.json", '{"length_penalty": NaN}', "length_penalty=nan: give a number"),
        ("vocab-tgt.json", "{", "is damaged"),
        ("merges.txt", None, r"has no merges.txt: the FSMT model is not whole"),
        ("model.safetensors", None, "has neither model.safetensors nor pytorch_model.bin"),
        ("model.safetensors", "no weights", "is incomplete or no checkpoint"),
    ],
)
def test_a_damaged_folder_is_refused_and_nothing_is_written(name, content, message, tmp_path):
    write_fsmt(tmp_path / "fsmt")
    (tmp_path / "fsmt" / name).unlink()
    if content is not None:
        (tmp_path / "fsmt" / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        convert_fsmt(FsmtOptions(input=str(tmp_path / "fsmt"), output=str(tmp_path / "ours")))
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("content", [[1], {"a": {"b": torch.ones(1)}}])
def test_a_file_without_tensors_by_name_is_refused(content, tmp_path):
    write_fsmt(tmp_path / "fsmt")
    (tmp_path / "fsmt" / "model.safetensors").unlink()
    torch.save(content, tmp_path / "fsmt" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin holds no state dict"):
        convert_fsmt(FsmtOptions(input=str(tmp_path / "fsmt"), output=str(tmp_path / "ours")))
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_positions_that_are_not_sinusoidal_are_refused(side, tmp_path):
    model, _ = write_fsmt(tmp_path / "fsmt")
    table = getattr(model.model, side).embed_positions.weight
    first = model.config.pad_token_id + 1
    for row, is_read in ((first - 1, False), (first, True)):  # FSMT reads no row before `first`
        with torch.no_grad():
            table[row, 5] += 0.01
        model.save_pretrained(tmp_path / "fsmt")
        options = FsmtOptions(input=str(tmp_path / "fsmt"), output=str(tmp_path / f"ours{row}"))
        if not is_read:
            convert_fsmt(options)
            continue
        with pytest.raises(
            ValueError, match=f"unclear: {side}.embed_positions.weight is not sinus"
        ):
            convert_fsmt(options)
        assert not (tmp_path / f"ours{row}").exists()
