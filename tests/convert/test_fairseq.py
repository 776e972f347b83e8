"""fairseq checkpoints: the logits, search and text of fairseq, or an error with all reasons."""

import argparse
import os
import sys
import tempfile
import types

import fairseq_by_hand as theirs
import pytest
import sacremoses
import torch
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.convert.fairseq import FairseqOptions, convert_fairseq
from hf_vanilla.convert.torch_transformer import TorchOptions, convert_torch
from hf_vanilla.text.translator import translate

PAIRS = [(theirs.ENGLISH, "en"), (theirs.GERMAN, "de")]
TOKENIZED = [[theirs.moses(line, lang) for line in lines] for lines, lang in PAIRS]
CODES = theirs.learned_codes(TOKENIZED[0] + TOKENIZED[1])
CUT = [[theirs.cut_with(CODES)(line) for line in lines] for lines in TOKENIZED]
JOINT = theirs.dictionary(CUT[0] + CUT[1])
APART = [theirs.dictionary(lines, least=least) for lines, least in zip(CUT, (1, 2), strict=True)]

ALL_SHARED = {"share_all_embeddings": True}
NOTHING_SHARED = {"share_decoder_input_output_embed": False}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}


def archive(folder, *, said=None, words=None, codes=CODES, is_old=False, is_nested=False, **kinds):
    """Settings, weights and folder of a random checkpoint."""
    said = theirs.settings(**(said or {}))
    source, target = words or ([JOINT, JOINT] if said["share_all_embeddings"] else APART)
    found = theirs.weights(said, len(source), len(target), is_old=is_old)
    found |= kinds.pop("extra", {})
    for name in kinds.pop("without", ()):
        del found[name]
    files = {
        "dict.en.txt": theirs.dictionary_file(source),
        "dict.de.txt": theirs.dictionary_file(target),
        "bpecodes": codes,
    }
    return said, found, theirs.write_archive(folder, said, found, files, is_nested=is_nested)


def converted(folder, output, **options):
    convert_fairseq(FairseqOptions(input=str(folder), output=str(output), **options))
    return AutoModelForSeq2SeqLM.from_pretrained(output).eval()


def rows_of(said, seed=3):
    """Two padded sources of unlike lengths and two targets, as ids."""
    generator = torch.Generator().manual_seed(seed)
    size = len(JOINT) if said["share_all_embeddings"] else min(map(len, APART))
    draw = lambda n: torch.randint(4, size, (n,), generator=generator).tolist()  # noqa: E731
    return [[*draw(7), 2], [*draw(3), 2]], [[2, *draw(5)], [2, *draw(5)]]


@pytest.mark.parametrize(
    ("said", "is_old", "is_nested"),
    [
        (ALL_SHARED, False, False),
        (ALL_SHARED, True, False),
        ({}, False, True),
        ({}, True, False),
        (NOTHING_SHARED, False, False),
        (NOTHING_SHARED, True, False),
        (LEARNED, False, True),
        ({"no_scale_embedding": True}, False, False),
        ({"activation_fn": "gelu"}, False, False),
    ],
    ids=str,
)
def test_logits_equal_those_of_fairseq(tmp_path, said, is_old, is_nested):
    said, found, folder = archive(tmp_path / "a", said=said, is_old=is_old, is_nested=is_nested)
    model = converted(folder, tmp_path / "b")
    sources, targets = rows_of(said)
    activation = torch.nn.functional.gelu if said.get("activation_fn") == "gelu" else torch.relu
    length = max(map(len, sources))
    with torch.no_grad():
        ours = model(
            input_ids=torch.tensor([row + [1] * (length - len(row)) for row in sources]),
            decoder_input_ids=torch.tensor(targets),
        ).logits
    for mine, source, target in zip(ours, sources, targets, strict=True):
        expected = theirs.logits(found, said, source, target, activation)
        # float32 sums in another order
        assert_close(mine, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("said", [ALL_SHARED, {}, NOTHING_SHARED], ids=str)
def test_every_weight_is_exactly_equal(tmp_path, said):
    _, found, folder = archive(tmp_path / "a", said=said)
    state = converted(folder, tmp_path / "b").state_dict()
    for name, weight in found.items():
        if "version" not in name and "_float" not in name:
            ours = "lm_head.weight" if "output" in name else f"model.{name}"
            assert torch.equal(state[ours], weight)


def test_half_precision_becomes_float32_exactly(tmp_path):
    said, found, folder = archive(tmp_path / "a")
    half = {name: weight.half() for name, weight in found.items()}
    theirs.write_archive(folder, said, half, {})
    model = converted(folder, tmp_path / "b")
    assert model.dtype == torch.float32
    fc1 = "encoder.layers.0.fc1.weight"
    assert torch.equal(model.state_dict()[f"model.{fc1}"], half[fc1].float())


def test_config_fields_equal_the_settings(tmp_path):
    _, _, folder = archive(tmp_path / "a")
    config = converted(folder, tmp_path / "b").config
    assert (config.dropout, config.activation_dropout, config.attention_dropout) == (
        0.3,
        0.05,
        0.07,
    )
    assert (config.label_smoothing, config.label_smoothing_type) == (0.2, "uniform")
    assert (config.layer_norm_eps, config.max_position_embeddings) == (1e-5, 53)
    assert (config.vocab_size, config.decoder_vocab_size) == tuple(map(len, APART))


@pytest.mark.parametrize("seed", [0, 1, 4, 5, 7])
@pytest.mark.parametrize("beam", [1, 5])
def test_beam_search_equals_that_of_fairseq(tmp_path, seed, beam):
    torch.manual_seed(seed)
    said, found, folder = archive(tmp_path / "a", said={**NOTHING_SHARED, **LEARNED})
    output = theirs.lively(found)["decoder.output_projection.weight"]
    output[theirs.PAD], output[theirs.EOS] = 2 * output[6], 2 * output[7]
    theirs.write_archive(folder, said, found, {})
    model = converted(folder, tmp_path / "b")
    for source in rows_of(said, seed)[0]:
        score, expected = theirs.beam_search(
            lambda ids, source=source: theirs.logits(found, said, source, ids)[-1].log_softmax(-1),
            longest=52,
            beam=beam,
        )
        assert beam == 1 or len(expected) < 53  # no end is forced, which transformers scores as 0
        asked = {"num_beams": beam, "output_scores": True, "return_dict_in_generate": True}
        ours = model.generate(input_ids=torch.tensor([source]), **asked)
        assert ours.sequences[0].tolist() == [theirs.EOS, *expected]
        if beam > 1:
            assert_close(ours.sequences_scores[0].item(), score, rtol=1e-4, atol=1e-4)


def test_a_translation_ends_at_the_limit_of_fairseq(tmp_path):
    said, found, folder = archive(tmp_path / "a", said={"max_target_positions": 1024})
    found["decoder.output_projection.weight"][theirs.EOS] = 0
    theirs.write_archive(folder, said, found, {})
    model = converted(folder, tmp_path / "b")
    ids = model.generate(input_ids=torch.tensor([[5, 2]]), num_beams=1)[0]
    assert len(ids) == 1 + 200 + 1
    assert ids[-1] == theirs.EOS


@pytest.mark.parametrize("said", [ALL_SHARED, {}], ids=["joint", "apart"])
def test_raw_text_is_translated_to_raw_text(tmp_path, said):
    said, found, folder = archive(tmp_path / "a", said={**said, **LEARNED})
    theirs.write_archive(folder, said, theirs.lively(found), {})
    model = converted(folder, tmp_path / "b")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "b")
    source, target = [JOINT, JOINT] if said["share_all_embeddings"] else APART
    expected = []
    for sentence in theirs.AWKWARD:
        line = theirs.cut_with(CODES)(theirs.moses(sentence, "en"))
        ids = theirs.ids_of(source, line)
        _, found_ids = theirs.beam_search(
            lambda got, ids=ids: theirs.logits(found, said, ids, got)[-1], longest=52, beam=1
        )
        words = theirs.joined(target, found_ids).split()
        expected.append(sacremoses.MosesDetokenizer(lang="de").detokenize(words))
    assert translate(model, tokenizer, list(theirs.AWKWARD), num_beams=1) == expected
    batch = tokenizer(list(theirs.AWKWARD), return_tensors="pt", padding=True)
    generated = model.generate(**batch, num_beams=1)
    assert tokenizer.batch_decode(generated, skip_special_tokens=True) == expected


def test_a_sentencepiece_model_is_converted(tmp_path):
    said, found, folder = archive(tmp_path / "a")
    (folder / "bpecodes").unlink()
    spiece = theirs.sentencepiece_model(folder / "sentencepiece.bpe.model", "bpe")
    cut = [[" ".join(spiece.encode(line, out_type=str)) for line in lines] for lines, _ in PAIRS]
    source, target = map(theirs.dictionary, cut)
    (folder / "dict.en.txt").write_text(theirs.dictionary_file(source), encoding="utf-8")
    (folder / "dict.de.txt").write_text(theirs.dictionary_file(target), encoding="utf-8")
    found = theirs.weights(said, len(source), len(target))
    theirs.write_archive(folder, said, found, {})
    model = converted(folder, tmp_path / "b")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "b")
    batch = tokenizer(
        theirs.ENGLISH[0], text_target=theirs.GERMAN[0], return_tensors="pt", padding=True
    )
    assert batch.input_ids[0].tolist() == theirs.ids_of(source, cut[0][0])
    assert batch.labels[0].tolist() == theirs.ids_of(target, cut[1][0])
    assert tokenizer.batch_decode(batch.labels, skip_special_tokens=True) == [theirs.GERMAN[0]]
    ids = model.generate(**batch, num_beams=1, max_new_tokens=11)[0].tolist()
    _, expected = theirs.beam_search(
        lambda got: theirs.logits(found, said, batch.input_ids[0].tolist(), got)[-1],
        longest=10,
        beam=1,
    )
    assert ids == [theirs.EOS, *expected]


# --- ensembles -----------------------------------------------------------------------------------


@pytest.fixture
def ensemble(tmp_path):
    """Three models, two of them in an order that names alone would get wrong."""
    folder = tmp_path / "ensemble"
    found = {}
    for name in ("model1.pt", "model2.pt", "model10.pt"):
        said, found[name], _ = archive(tmp_path / "one")
        theirs.write_archive(folder, said, found[name], {}, name=name)
    for name in ("dict.en.txt", "dict.de.txt", "bpecodes"):
        (tmp_path / "one" / name).rename(folder / name)
    return folder, list(found.values())


def first_weight(model):
    return model.state_dict()["model.encoder.layers.0.fc1.weight"]


def test_member_chooses_one_model_of_an_ensemble(ensemble, tmp_path):
    folder, members = ensemble
    model = converted(folder, tmp_path / "b", member=3)
    assert torch.equal(first_weight(model), members[2]["encoder.layers.0.fc1.weight"])


def test_every_member_of_an_ensemble_gets_its_own_folder(ensemble, tmp_path):
    folder, members = ensemble
    convert_fairseq(FairseqOptions(input=str(folder), output=str(tmp_path / "b")))
    for number, member in enumerate(members, start=1):
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b" / f"member{number}")
        assert torch.equal(first_weight(model), member["encoder.layers.0.fc1.weight"])
        assert len(AutoTokenizer.from_pretrained(tmp_path / "b" / f"member{number}"))


def test_a_missing_member_is_an_error(ensemble, tmp_path):
    with pytest.raises(ValueError, match="member=4: there are 3 models"):
        converted(ensemble[0], tmp_path / "b", member=4)


def test_the_input_may_be_one_checkpoint_file(ensemble, tmp_path):
    folder, members = ensemble
    model = converted(folder / "model2.pt", tmp_path / "b")
    assert torch.equal(first_weight(model), members[1]["encoder.layers.0.fc1.weight"])


@pytest.mark.parametrize("name", ["averaged", "model.pt.backup", "checkpoint.best_bleu_27.5"])
def test_a_checkpoint_file_may_have_any_name(tmp_path, name):
    _, found, folder = archive(tmp_path / "a")
    (folder / "model.pt").rename(folder / name)
    assert "has no .pt file: give the folder of model.pt, or a file" in refused(folder, tmp_path)
    model = converted(folder / name, tmp_path / "b")
    assert torch.equal(first_weight(model), found["encoder.layers.0.fc1.weight"])


def test_checkpoints_of_one_run_are_no_ensemble(tmp_path):
    said, found, folder = archive(tmp_path / "a")
    (folder / "model.pt").unlink()
    for name in ("checkpoint1.pt", "checkpoint2.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        theirs.write_archive(folder, said, found, {}, name=name)
    error = refused(folder, tmp_path)
    assert "has 4 checkpoints of one run, which are no ensemble: give one file, such as " in error
    assert error.endswith("a/checkpoint_best.pt")
    assert first_weight(converted(folder / "checkpoint_best.pt", tmp_path / "b")).numel()


def test_dictionaries_may_be_in_another_folder(tmp_path):
    _, found, folder = archive(tmp_path / "a")
    (tmp_path / "bin").mkdir()
    for name in ("dict.en.txt", "dict.de.txt", "bpecodes"):
        (folder / name).rename(tmp_path / "bin" / name)
    model = converted(folder, tmp_path / "b", dictionaries=str(tmp_path / "bin"))
    assert torch.equal(first_weight(model), found["encoder.layers.0.fc1.weight"])


def test_all_missing_files_and_languages_are_in_one_message(tmp_path):
    said, found, folder = archive(tmp_path / "a")
    for name in ("dict.en.txt", "dict.de.txt", "bpecodes"):
        (folder / name).unlink()
    theirs.write_archive(folder, {**said, "target_lang": None}, found, {})
    error = refused(folder, tmp_path)
    assert "has no dict.en.txt: add --dictionaries FOLDER" in error
    assert "does not name its target language: add --target_lang" in error
    assert "name the file with --pieces" in error


# --- what is refused -----------------------------------------------------------------------------


def refused(folder, tmp_path, **options):
    """The message; nothing may be left behind."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ValueError, OSError)) as message:
        converted(folder, tmp_path / "never", **options)
    assert sorted(tmp_path.iterdir()) == before
    assert "\n" not in str(message.value)
    return str(message.value)


def test_one_message_names_all_reasons_and_weights(tmp_path):
    extra = {
        "encoder.layer_norm.weight": torch.ones(24),
        "decoder.layernorm_embedding.bias": torch.ones(24),
        "decoder.layers.0.self_attn.bias_k": torch.ones(1, 1, 24),
        "encoder.layers.1.fc1.bias": torch.ones(30),
    }
    said = {"encoder_normalize_before": True, "adaptive_softmax_cutoff": [9, 20]}
    _, _, folder = archive(
        tmp_path / "a", said=said, extra=extra, without=["decoder.layers.2.fc2.weight"]
    )
    message = refused(folder, tmp_path)
    for part in (
        "encoder_normalize_before=True (pre-norm encoder)",
        "adaptive_softmax_cutoff=[9, 20] (adaptive softmax)",
        "encoder.layer_norm.weight (final norm of a pre-norm model)",
        "decoder.layernorm_embedding.bias (norm on the embeddings)",
        "decoder.layers.0.self_attn.bias_k",
        "missing: model.decoder.layers.2.fc2.weight",
        "encoder.layers.1.fc1.bias (shape (30,), expected (29,))",
    ):
        assert part in message


def test_a_dictionary_of_another_size_is_an_error_with_both_sizes(tmp_path):
    _, _, folder = archive(tmp_path / "a")
    short = theirs.dictionary_file(APART[1][:-3])
    (folder / "dict.de.txt").write_text(short, encoding="utf-8")
    message = f"target dictionary has {len(APART[1]) - 3} tokens, .* has {len(APART[1])} rows"
    with pytest.raises(ValueError, match=message):
        converted(folder, tmp_path / "b")


def test_a_shared_embedding_with_two_dictionaries_is_an_error(tmp_path):
    _, _, folder = archive(tmp_path / "a", said=ALL_SHARED)
    other = [*JOINT[:5], JOINT[6], JOINT[5], *JOINT[7:]]
    (folder / "dict.de.txt").write_text(theirs.dictionary_file(other), encoding="utf-8")
    assert "share one embedding, but their dictionaries differ" in refused(folder, tmp_path)


def test_shared_tables_that_differ_are_an_error(tmp_path):
    other = {"decoder.output_projection.weight": torch.ones(len(APART[1]), 24)}
    _, _, folder = archive(tmp_path / "a", extra=other)
    assert "decoder.output_projection.weight are tied in our model" in refused(folder, tmp_path)


def test_another_architecture_is_an_error_with_its_weights(tmp_path):
    said, _, folder = archive(tmp_path / "a")
    said = {"arch": "fconv_wmt_en_de", "task": "translation", "source_lang": "en"}
    found = {"encoder.convolutions.0.bias": torch.ones(3)}
    theirs.write_archive(folder, {**said, "target_lang": "de"}, found, {})
    message = refused(folder, tmp_path)
    assert "arch='fconv_wmt_en_de' is not the transformer" in message
    assert "encoder_embed_dim is missing" in message
    assert "encoder.convolutions.0.bias" in message


@pytest.mark.parametrize("content", [{"weight": torch.ones(2)}, [1, 2], {"model": {"a": 1}}])
def test_other_files_are_an_error(tmp_path, content):
    _, _, folder = archive(tmp_path / "a")
    torch.save(content, folder / "model.pt")
    assert "model.pt is no checkpoint of fairseq" in refused(folder, tmp_path)


def test_a_truncated_checkpoint_is_an_error(tmp_path):
    _, _, folder = archive(tmp_path / "a", is_nested=True)
    whole = (folder / "model.pt").read_bytes()
    (folder / "model.pt").write_bytes(whole[: len(whole) // 2])
    assert "is incomplete" in refused(folder, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"encoder.transformer.0.self_attn.linear_keys.weight": 1}}, "OpenNMT-py"),
        ({"steps": 3, "model_state": {}}, "a JoeyNMT checkpoint"),
        ({"encoder.layers.0.sublayer.0.norm.a_2": torch.ones(2)}, "the Annotated Transformer"),
    ],
)
def test_a_checkpoint_of_another_toolkit_is_named(tmp_path, content, message):
    _, _, folder = archive(tmp_path / "a")
    torch.save(content, folder / "model.pt")
    error = refused(folder, tmp_path)
    assert "model.pt is a" in error
    assert message in error
    assert "pre-norm" in error
    with pytest.raises(ValueError, match=message):
        convert_torch(
            TorchOptions(
                input=str(folder / "model.pt"),
                output=str(tmp_path / "never"),
                heads=3,
                pad_token_id=0,
                decoder_start_token_id=1,
                eos_token_id=1,
            )
        )


def test_a_pickled_class_of_another_toolkit_is_named_and_never_trusted(tmp_path, monkeypatch):
    _, _, folder = archive(tmp_path / "a")
    module = types.ModuleType("onmt")
    module.Vocab = type("Vocab", (), {"__module__": "onmt"})
    monkeypatch.setitem(sys.modules, "onmt", module)
    torch.save({"model": {}, "vocab": module.Vocab()}, folder / "model.pt")
    error = refused(folder, tmp_path)
    assert "model.pt is an OpenNMT-py checkpoint; its layers are pre-norm" in error
    assert "trust_pickle" not in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.npz", "", "of Marian or a ViT of Google: --format marian takes the folder"),
        ("model.ckpt-250000.index", "", "a tensor2tensor or other TensorFlow checkpoint"),
        ("config.json", '{"model_type": "fsmt"}', "an FSMT model of transformers"),
    ],
)
def test_a_folder_of_another_toolkit_is_named(tmp_path, name, content, message):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_text(content)
    assert f"a is {message}" in refused(tmp_path / "a", tmp_path)


def test_settings_of_a_wrong_type_are_named_together(tmp_path):
    said, found, folder = archive(tmp_path / "a")
    wrong = {"encoder_layers": "six", "dropout": [0.1], "activation_fn": {"relu": 1}}
    theirs.write_archive(folder, {**said, **wrong}, found, {})
    error = refused(folder, tmp_path)
    assert "model.pt has settings of a wrong type: encoder_layers='six' is not an integer" in error
    assert "dropout=[0.1] is not a number" in error
    assert "activation_fn={'relu': 1} is not a string" in error


def test_an_archive_must_be_extracted_first(tmp_path):
    (tmp_path / "a.tar.bz2").write_bytes(b"BZh9")
    assert "a.tar.bz2 is an archive: extract it" in refused(tmp_path / "a.tar.bz2", tmp_path)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("model.pt", "has no .pt file"),
        ("dict.de.txt", "dict.de.txt"),
        ("bpecodes", "has none: name the file with --pieces"),
    ],
)
def test_a_missing_file_is_named(tmp_path, gone, message):
    _, _, folder = archive(tmp_path / "a")
    (folder / gone).unlink()
    assert message in refused(folder, tmp_path)


def test_two_codes_files_need_pieces(tmp_path):
    _, _, folder = archive(tmp_path / "a")
    (folder / "code").write_text(theirs.as_fastbpe(CODES), encoding="utf-8")
    assert "has bpecodes, code: name the file with --pieces" in refused(folder, tmp_path)
    converted(folder, tmp_path / "b", pieces=str(folder / "code"))


def test_missing_languages_are_an_error_with_the_options(tmp_path):
    said = {"source_lang": None, "target_lang": None}
    _, _, folder = archive(tmp_path / "a", said=said)
    assert "does not name its source language: add --source_lang" in refused(folder, tmp_path)
    converted(folder, tmp_path / "b", source_lang="en", target_lang="de")


def test_an_existing_output_is_kept(tmp_path):
    _, _, folder = archive(tmp_path / "a")
    (tmp_path / "never").mkdir()
    (tmp_path / "never" / "mine").write_text("mine")
    assert "exists and is not an empty folder" in refused(folder, tmp_path)
    assert (tmp_path / "never" / "mine").read_text() == "mine"


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, place, make=tempfile.mkdtemp):
        self.place, self.make = str(place), make

    def __reduce__(self):
        if self.make is os.mkdir:  # of a module that torch blocks, in words of its own
            return os.mkdir, (f"{self.place}/trap",)
        return tempfile.mkdtemp, ("", "trap", self.place)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    ("make", "name"), [(tempfile.mkdtemp, "tempfile.mkdtemp"), (os.mkdir, f"{os.name}.mkdir")]
)
def test_pickled_code_does_not_run_without_trust_pickle(tmp_path, is_zip, make, name):
    said, found, folder = archive(tmp_path / "a")
    checkpoint = {"model": found, "args": argparse.Namespace(**said)}
    checkpoint["extra_state"] = Hostile(tmp_path, make)
    torch.save(checkpoint, folder / "model.pt", _use_new_zipfile_serialization=is_zip)
    message = refused(folder, tmp_path)
    assert f"contains more than tensors: {name};" in message
    assert "--trust_pickle" in message
    assert not list(tmp_path.glob("trap*"))
    converted(folder, tmp_path / "b", trust_pickle=True)
    assert list(tmp_path.glob("trap*"))


def test_a_trusted_file_names_the_missing_package(tmp_path, monkeypatch):
    said, found, folder = archive(tmp_path / "a")
    package = types.ModuleType("omegaconf")
    package.DictConfig = type("DictConfig", (dict,), {"__module__": "omegaconf"})
    monkeypatch.setitem(sys.modules, "omegaconf", package)
    settings = package.DictConfig(theirs.nested(said))
    torch.save({"model": found, "args": None, "cfg": settings}, folder / "model.pt")
    assert "omegaconf.DictConfig; " in refused(folder, tmp_path)
    converted(folder, tmp_path / "b", trust_pickle=True)
    monkeypatch.delitem(sys.modules, "omegaconf")
    with pytest.raises(ImportError, match="classes of omegaconf: install it"):
        converted(folder, tmp_path / "c", trust_pickle=True)
    assert not (tmp_path / "c").exists()
