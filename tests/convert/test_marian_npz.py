"""Models of Marian itself: written from a MarianMTModel by names written here, and read again."""

import json
import shutil

import numpy as np
import opus
import pytest
import torch
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer

from hf_vanilla.convert.marian import MarianOptions, convert_marian

SETTINGS = {
    "type": "transformer",
    "dim-emb": 12,
    "enc-depth": 2,
    "dec-depth": 3,
    "transformer-heads": 2,
    "transformer-dim-ffn": 29,
    "transformer-decoder-dim-ffn": 31,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-ffn-depth": 2,
    "tied-embeddings-all": True,
}


def arrays_of_layer(layer, prefix):
    """The arrays of one layer: matrices transposed, biases and norms as rows."""
    linear = {"ffn_{}1": layer.fc1, "ffn_{}2": layer.fc2}
    norms = {"self_Wo": layer.self_attn_layer_norm, "ffn_ffn": layer.final_layer_norm}
    attentions = {"self": layer.self_attn}
    if prefix.startswith("decoder"):
        attentions["context"] = layer.encoder_attn
        norms["context_Wo"] = layer.encoder_attn_layer_norm
    for name, attention in attentions.items():
        linear[f"{name}_{{}}q"], linear[f"{name}_{{}}k"] = attention.q_proj, attention.k_proj
        linear[f"{name}_{{}}v"], linear[f"{name}_{{}}o"] = attention.v_proj, attention.out_proj
    found = {}
    for name, module in linear.items():
        found[prefix + name.format("W")] = module.weight.T
        found[prefix + name.format("b")] = module.bias[None]
    for name, module in norms.items():
        found[f"{prefix}{name}_ln_scale"] = module.weight[None]
        found[f"{prefix}{name}_ln_bias"] = module.bias[None]
    return found


def arrays_of(model, settings):
    """The arrays of Marian for a MarianMTModel, without the padding token."""
    arrays = {}
    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model.model, side).layers, start=1):
            arrays |= arrays_of_layer(layer, f"{side}_l{number}_")
    if model.config.share_encoder_decoder_embeddings:
        arrays["Wemb"] = model.model.shared.weight[:-1]
    else:
        arrays["encoder_Wemb"] = model.model.encoder.embed_tokens.weight[:-1]
        arrays["decoder_Wemb"] = model.model.decoder.embed_tokens.weight[:-1]
    if not model.config.tie_word_embeddings:
        arrays["decoder_ff_logit_out_W"] = model.lm_head.weight[:-1].T
    arrays["decoder_ff_logit_out_b"] = model.final_logits_bias[:, :-1]
    found = {name: value.detach().numpy() for name, value in arrays.items()}
    text = yaml.safe_dump(settings).encode() + b"\0"
    return {**found, "special:model.yml": np.frombuffer(text, dtype=np.int8)}


def written(folder, settings=None, **changes):
    """A folder of Marian, and the MarianMTModel and tokenizer of the same weights."""
    vocab_size, _ = opus.write_tokenizer(folder)
    ids = json.loads((folder / "vocab.json").read_text())
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = opus.marian_model(vocab_size=vocab_size, **heads, **changes)
    with torch.no_grad():
        model.final_logits_bias[:, -1] = 0
        model.lm_head.weight[-1] = 0
        if model.config.share_encoder_decoder_embeddings:  # without tying, only by name
            for stack in (model.model.encoder, model.model.decoder):
                stack.embed_tokens.weight.copy_(model.model.shared.weight)
    tokenizer = MarianTokenizer.from_pretrained(folder)
    for name in ("vocab.json", "tokenizer_config.json"):
        (folder / name).unlink()
    del ids["<pad>"]
    (folder / "opus.vocab.yml").write_text(yaml.safe_dump(ids, allow_unicode=True), "utf-8")
    decoder = {"models": ["./model.npz"], "vocabs": ["opus.vocab.yml"] * 2, "beam-size": 3}
    (folder / "decoder.yml").write_text(yaml.safe_dump({**decoder, "normalize": 0.6}))
    np.savez(folder / "model.npz", **arrays_of(model, {**SETTINGS, **(settings or {})}))
    return model, tokenizer


def converted(folder, **options):
    output = folder.parent / "ours"
    shutil.rmtree(output, ignore_errors=True)
    convert_marian(MarianOptions(input=str(folder), output=str(output), **options))
    return AutoModelForSeq2SeqLM.from_pretrained(output).eval(), AutoTokenizer.from_pretrained(
        output
    )


TYINGS = {
    "all": ({}, {}),
    "output apart": (
        {"tied-embeddings-all": False, "tied-embeddings-src": True},
        {"tie_word_embeddings": False},
    ),
    "source apart": (
        {"tied-embeddings-all": False, "tied-embeddings": True},
        {"share_encoder_decoder_embeddings": False},
    ),
}


@pytest.mark.parametrize("tying", TYINGS)
def test_logits_and_tokens_are_those_of_marian_mt_model(tmp_path, tying):
    settings, changes = TYINGS[tying]
    theirs, their_tokenizer = written(tmp_path / "theirs", settings, **changes)
    options = {"frequencies": "transformers", "check": tying == "all"}
    ours, tokenizer = converted(tmp_path / "theirs", **options)
    texts = list(opus.SOURCES)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    theirs_batch = their_tokenizer(texts, return_tensors="pt", padding=True)
    assert torch.equal(batch["input_ids"], theirs_batch["input_ids"])
    read = torch.randint(1, 40, (len(texts), 7))
    with torch.no_grad():
        expected = theirs(**theirs_batch, decoder_input_ids=read).logits
        found = ours(**batch, decoder_input_ids=read).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert ours.generation_config.num_beams == 3
    assert ours.generation_config.length_penalty == 0.6


def test_positions_and_epsilon_are_those_of_marian(tmp_path):
    written(tmp_path / "theirs")
    ours, _ = converted(tmp_path / "theirs")
    assert ours.config.position_frequencies == "tensor2tensor"
    assert ours.config.position_layout == "concatenated"
    assert ours.config.layer_norm_eps == 1e-6


def test_gelu_is_that_of_marian(tmp_path):
    written(tmp_path / "theirs", {"transformer-ffn-activation": "gelu"})
    ours, _ = converted(tmp_path / "theirs")
    numbers = torch.linspace(-3, 3, 13)
    for stack in (ours.model.encoder, ours.model.decoder):
        found = stack.layers[0].activation_fn(numbers)
        torch.testing.assert_close(found, numbers * torch.sigmoid(1.702 * numbers))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "s2s"}, "no Transformer but a model of type 's2s'"),
        ({"transformer-decoder-autoreg": "rnn"}, r"its decoder has 'rnn' \(rnn: SSRU\)"),
        ({"transformer-postprocess": "da"}, "norms in another order: transformer-postprocess=da"),
        ({"transformer-preprocess": "n"}, "a pre-norm model: transformer-preprocess=n"),
        ({"transformer-train-position-embeddings": True}, "learned positions"),
        ({"transformer-disable-position-embeddings": True}, "no positions"),
        ({"transformer-attention-mask": "alibi"}, "attention with a bias: alibi"),
        ({"transformer-pool": True}, "a decoder that reads one pooled vector"),
        ({"transformer-tied-layers": [1, 1, 2]}, "tied layers"),
        ({"transformer-ffn-activation": "tanh"}, "the activation 'tanh', which Marian does not"),
        ({"lemma-dim-emb": 8}, "factors with lemma-dim-emb=8"),
    ],
    ids=str,
)
def test_other_architectures_are_named(tmp_path, settings, message):
    written(tmp_path / "theirs", settings)
    with pytest.raises(ValueError, match=f"is not the paper's model: {message}"):
        converted(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_settings_that_change_no_translation_are_read(tmp_path):
    same = {"transformer-postprocess": "an", "transformer-preprocess": "d", "ulr": None}
    written(tmp_path / "theirs", {**same, "layer-normalization": True})
    ours, _ = converted(tmp_path / "theirs", frequencies="transformers", check=True)
    assert ours.config.encoder_layers == 2


def test_the_search_is_that_of_decoder_yml(tmp_path, caplog):
    folder = tmp_path / "theirs"
    written(folder)
    ids = yaml.safe_load((folder / "opus.vocab.yml").read_text("utf-8"))
    ours, _ = converted(folder)
    assert ours.generation_config.bad_words_ids == [[len(ids)], [ids["<unk>"]]]
    decoder = yaml.safe_load((folder / "decoder.yml").read_text())
    changed = {**decoder, "allow-unk": True, "word-penalty": 0.5}
    (folder / "decoder.yml").write_text(yaml.safe_dump(changed))
    ours, _ = converted(folder)
    assert ours.generation_config.bad_words_ids == [[len(ids)]]
    assert "word-penalty=0.5 has no counterpart here" in caplog.text


# as yaml-cpp writes pieces: quotes around null-like ones only
PLAIN = ("no", "off", "on", "yes", "y", "1", "01", "1.5", "1e3", "<<", "=", "2020-01-01", "true")
QUOTED = ("null", "~")


def test_pieces_of_a_vocabulary_are_text(tmp_path):
    folder = tmp_path / "theirs"
    written(folder)
    ids = yaml.safe_load((folder / "opus.vocab.yml").read_text("utf-8"))
    pieces = sorted(ids, key=ids.__getitem__)
    pieces[-len(PLAIN + QUOTED) :] = PLAIN + QUOTED
    quoted = {p: p if p in PLAIN else json.dumps(p, ensure_ascii=False) for p in pieces}
    lines = [f"{quoted[piece]}: {number}\n" for number, piece in enumerate(pieces)]
    (folder / "opus.vocab.yml").write_text("".join(lines), "utf-8")
    _, tokenizer = converted(folder)
    assert tokenizer.get_vocab() == {p: i for i, p in enumerate([*pieces, "<pad>"])}


def test_a_vocabulary_may_be_json_with_escapes(tmp_path):
    folder = tmp_path / "theirs"
    written(folder)
    ids = yaml.safe_load((folder / "opus.vocab.yml").read_text("utf-8"))
    ids["\U0001f600"] = ids.pop("m")
    (folder / "opus.vocab.yml").write_text(json.dumps(ids))  # two \\u escapes for one letter
    _, tokenizer = converted(folder)
    assert tokenizer.get_vocab() == {**ids, "<pad>": len(ids)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("</s>: 0\na: x\n", r"yml: piece 'a' has the id 'x': give an integer$"),
        ("</s>: 0\na:\n", r"yml: piece 'a' has the id '': give an integer$"),
        ('{"</s>": null}', r"yml: piece '</s>' has the id None: give an integer$"),
        (
            "</s>: 0\na: 2\n",
            r"yml must have the ids 0 to 1, each once, and piece 'a' has the id 2$",
        ),
        (
            "</s>: 0\na: 1\nb: 1\n",
            r"yml must have the ids 0 to 2, each once, and piece 'b' has the id 1$",
        ),
        ("</s>: 0\na: 1\na: 2\n", r"yml: piece 'a' is there twice: remove one$"),
        ("</s>: 0\n[a]: 1\n", r"yml, line 2: each piece must be text, with one id$"),
        ("- </s>\n", r"yml must hold the id of each piece$"),
        ("{}", r"yml must hold the id of each piece$"),
        ("</s>: 'x\n", r"yml is no YAML or JSON \(.*\): download it again$"),
        (b"\xff: 1\n", r"yml is no YAML or JSON \('utf-8' codec .*\): download it again$"),
    ],
)
def test_a_damaged_vocabulary_is_one_line(tmp_path, content, message):
    folder = tmp_path / "theirs"
    written(folder)
    path = folder / "opus.vocab.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        converted(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabs": "opus.vocab.yml"}, r"vocabs='opus.vocab.yml' must be a list of file names"),
        ({"models": [1]}, r"models=\[1\] must be a list of file names"),
        ({"beam-size": "x"}, "beam-size='x' must be an integer, at least 1"),
        ({"beam-size": 0}, "beam-size=0 must be an integer, at least 1"),
        ({"normalize": [1]}, r"normalize=\[1\] must be a finite number"),
        ({"normalize": float("nan")}, "normalize=nan must be a finite number"),
        ({"word-penalty": "x"}, "word-penalty='x' must be a finite number"),
        (b"\xff: 1\n", r" is not YAML: 'utf-8' codec can't decode byte 0xff .*"),
    ],
)
def test_impossible_settings_of_decoder_yml_are_one_line(tmp_path, settings, message):
    folder = tmp_path / "theirs"
    written(folder)
    content = settings if isinstance(settings, bytes) else yaml.safe_dump(settings).encode()
    (folder / "decoder.yml").write_bytes(content)
    with pytest.raises(ValueError, match=f"decoder.yml:? ?{message}$"):
        converted(folder)
    assert not (tmp_path / "ours").exists()


def test_null_in_decoder_yml_is_not_set(tmp_path):
    folder = tmp_path / "theirs"
    written(folder)
    names = ("models", "vocabs", "beam-size", "normalize", "word-penalty", "allow-unk")
    (folder / "decoder.yml").write_text(yaml.safe_dump(dict.fromkeys(names)))
    ours, tokenizer = converted(folder)
    assert (ours.generation_config.num_beams, ours.generation_config.length_penalty) == (12, 0)
    assert len(ours.generation_config.bad_words_ids) == 2
    assert tokenizer.pad_token_id == ours.config.pad_token_id
    shutil.copy(folder / "model.npz", folder / "other.npz")
    with pytest.raises(ValueError, match=r"has 2 .npz files: keep one, or name it in decoder.yml$"):
        converted(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transformer-heads": 0}, "transformer-heads=0 must be an integer, at least 1"),
        ({"transformer-heads": 5}, "dim-emb=12 must be even and a multiple of transformer-heads=5"),
        ({"enc-depth": "two"}, "enc-depth='two' must be an integer, at least 1"),
        ({"transformer-decoder-dim-ffn": -1}, "dim-ffn=-1 must be an integer, at least 0"),
        ({"transformer-dropout": "x"}, "transformer-dropout='x' must be a finite number"),
        ({"transformer-dropout": 2}, r"transformer-dropout=2 must be in \[0, 1\)"),
    ],
)
def test_impossible_sizes_are_one_line(tmp_path, settings, message):
    written(tmp_path / "theirs", settings)
    with pytest.raises(ValueError, match=rf"model\.npz, special:model\.yml: .*{message}$"):
        converted(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_vocabularies_of_other_kinds_are_named(tmp_path):
    folder = tmp_path / "theirs"
    written(folder)
    for name, kind in {"v.fsv": "factored", "source.spm": "a SentencePiece model"}.items():
        (folder / name).touch()
        (folder / "decoder.yml").write_text(yaml.safe_dump({"vocabs": [name, name]}))
        with pytest.raises(ValueError, match=f"{name}: this vocabulary is {kind}"):
            converted(folder)


def test_bad_files_are_one_line(tmp_path):
    folder = tmp_path / "theirs"
    written(folder)
    arrays = dict(np.load(folder / "model.npz"))
    changes = {
        r"has object arrays, which can run code": {"x": np.array([{}], dtype=object)},
        r"left over: more; missing: model.encoder.layers.0.fc1.weight$": {
            "more": np.ones(2),
            "encoder_l1_ffn_W1": None,
        },
        r"has no special:model.yml": {"special:model.yml": None},
        r"model\.npz: Wemb has shape \(\), and needs two axes$": {"Wemb": np.float32(1)},
        r"wrong: encoder_l1_ffn_W1 \(shape \(3,\), expected \(29, 12\)\)$": {
            "encoder_l1_ffn_W1": np.ones(3, "f")
        },
        r"wrong: encoder_l1_ffn_b1 \(dtype torch.int8, expected floating point\)$": {
            "encoder_l1_ffn_b1": np.ones((1, 29), "i1")
        },
    }
    for message, change in changes.items():
        changed = {k: v for k, v in {**arrays, **change}.items() if v is not None}
        np.savez(folder / "model.npz", **changed)
        with pytest.raises(ValueError, match=message) as caught:
            converted(folder)
        assert "\n" not in str(caught.value)
    (folder / "model.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"model\.npz cannot be read \("):
        converted(folder)
    (folder / "model.npz").rename(folder / "model.intgemm.bin")
    with pytest.raises(ValueError, match="is a binary model of Marian: give its"):
        converted(folder)
    assert not (tmp_path / "ours").exists()


def test_a_damaged_sentencepiece_model_is_one_line(tmp_path):
    folder = tmp_path / "theirs"
    written(folder)
    (folder / "target.spm").write_bytes(b"xx")
    with pytest.raises(ValueError, match=r"target\.spm cannot be read \(.*\): download it again$"):
        converted(folder)
    assert not (tmp_path / "ours").exists()
