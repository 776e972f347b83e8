"""Translators in ONNX Runtime: the exported folder's search is ours, without torch."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import opus
import pytest
import torch
from conftest import SENTENCES
from lively import SIZES, lively_model
from onnx_folders import BLOCKED, runner_of, without_reader
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from transformers import MarianTokenizer, TokenizersBackend

from hf_vanilla import VanillaConfig, VanillaForSequenceClassification, train_tokenizer, translate
from hf_vanilla.convert.export import ExportOptions, export
from hf_vanilla.convert.fairseq_tokenizer import with_tokenizer_json
from hf_vanilla.convert.marian import MarianOptions, convert_marian
from hf_vanilla.convert.onnx import files
from hf_vanilla.convert.onnx import transformers_js as js
from hf_vanilla.convert.onnx.translators import RUNNER, load_for_export
from hf_vanilla.text.engines import OnnxEngine, TorchEngine
from hf_vanilla.text.n_best import n_best_of_rows
from hf_vanilla.text.translator import Translator

ir = pytest.importorskip("onnx_ir")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

BEAMS = 4


def lively_translator(**changes):
    """A model of random weights whose translations differ and end."""
    torch.manual_seed(3)
    model = lively_model(vocab_size=283, d_model=24, **changes).float()
    model.generation_config.num_beams = BEAMS
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES, vocab_size=283, model_max_length=61)


@pytest.fixture(scope="module")
def model():
    return lively_translator()


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    """The folder of an export that most tests read."""
    ours, used = tmp_path_factory.mktemp("ours"), copy.deepcopy(tokenizer)
    used(["a house", "two"], padding=True, truncation=True)  # which it is then saved with
    model.save_pretrained(ours)
    used.save_pretrained(ours)
    return export(ExportOptions(model=str(ours), output=f"{ours}-onnx", format="onnx"))


@pytest.fixture(scope="module")
def int8_folder(folder, tmp_path_factory):
    """The same folder, quantized as `--dtype int8` does."""
    int8 = tmp_path_factory.mktemp("int8")
    shutil.copytree(folder, int8, dirs_exist_ok=True)
    for name in ("encoder.onnx", "decoder.onnx"):
        graph = ir.load(folder / name)
        files._quantize(graph)
        ir.save(graph, int8 / name)
    return int8


def encoder_only(folder, tokenizer):
    config = VanillaConfig(**{**SIZES, "vocab_size": 283})
    VanillaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def source_rows(count):
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 12, (count,), generator=generator).tolist()
    return [[*torch.randint(3, 283, (n,), generator=generator).tolist(), 1] for n in lengths]


def ids_of(hypotheses, limit):
    """Without the end token that transformers fills in after a hypothesis at its limit."""
    return [list(one.ids)[:limit] for one in hypotheses]


def test_hypotheses_are_those_of_generate_in_batches_and_alone(model, tokenizer, folder):
    rows, first_ids = source_rows(48), set()
    for changes in (
        {},
        {"length_penalty_form": "power", "early_stopping": True},
        {"length_penalty": 0.0, "early_stopping": False, "max_length": 17},
        {"max_new_tokens": 5, "forced_eos_token_id": 1},
    ):
        translator = runner_of(folder).Translator(folder, threads=1, **changes)
        expected = n_best_of_rows(model, tokenizer, rows, BEAMS, **changes)
        for size in (16, 1):
            batches = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
            found = [lists for batch in batches for lists in translator.search(batch)]
            for row, ours, theirs in zip(rows, expected, found, strict=True):
                assert [one.ids for one in theirs] == ids_of(ours, translator._limit(len(row)))
                first_ids.add(tuple(theirs[0].ids))
                scores = [one.score for one in ours]
                assert [one.score for one in theirs] == pytest.approx(scores, abs=1e-4)
    assert len(first_ids) > 40  # they differ, and about half end by themselves


def test_the_engine_onnx_translates_as_our_own(model, tokenizer, folder):
    lines = [*SENTENCES, "", " ".join(SENTENCES)]
    found = list(Translator(folder, engine="onnx", tokens_per_batch=90).translate(lines))
    assert found == list(Translator(TorchEngine(model, tokenizer)).translate(lines))
    shorter = list(Translator(folder, engine="onnx", max_new_tokens=2).translate(lines))
    assert shorter == translate(model, tokenizer, lines, max_new_tokens=2)


def test_int8_products_quantize_each_row_by_its_own_maximum(tmp_path):
    """Whole numbers that reach the highest level: the result is exact for rows of any size."""
    generator = np.random.default_rng(1)
    states, weight = generator.integers(-126, 127, (5, 7)), generator.integers(-63, 64, (3, 7))
    states[:, 2], weight[:, 4] = 127, -64
    sizes = np.array([[1e-6], [1], [-1e6], [0], [3e-2]])
    channels, bias = np.array([[0.5], [2], [1e-3]]), np.array([1, 2, 3])
    for kind, constant, added in (
        ("Gemm", weight * channels, bias),  # as a linear layer is exported
        ("MatMul", (weight * channels).T, 0),
    ):
        tape, rows = ir.tape.Tape(), ir.val("rows", ir.DataType.FLOAT, ["B", 7])
        factor = tape.initializer(ir.tensor(np.float32(constant), name="weight"))
        if kind == "Gemm":
            addend = tape.initializer(ir.tensor(np.float32(bias), name="bias"))
            product = tape.op(kind, [rows, factor, addend], {"transB": 1})
        else:
            product = tape.op(kind, [rows, factor])
        product.name, product.type = "product", ir.TensorType(ir.DataType.FLOAT)
        whole = ir.Graph(
            [rows],
            [product],
            nodes=tape.nodes,
            initializers=tape.initializers,
            opset_imports={"": files.OPSET},
        )
        graph = ir.Model(whole, ir_version=10)
        files._quantize(graph)
        ir.save(graph, tmp_path / "product.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "product.onnx")
        (found,) = session.run(None, {"rows": np.float32(states * sizes)})
        exact = (states * sizes) @ (weight * channels).T
        np.testing.assert_allclose(found, exact + added, rtol=1e-6)


def test_sentences_of_an_int8_folder_do_not_depend_on_each_other(int8_folder):
    """Bit by bit where no padding changes how a softmax is summed."""
    translator = runner_of(int8_folder).Translator(int8_folder, threads=1)
    equal = [[*row, 1] for row in np.random.default_rng(2).integers(3, 283, (17, 6)).tolist()]
    alone = [translator.search([row])[0] for row in equal]
    assert translator.search(equal) == alone
    assert len({tuple(found[0].ids) for found in alone}) > 9
    rows = source_rows(9)
    engine = OnnxEngine(int8_folder)
    assert engine.translate_rows(rows) == [engine.translate_rows([row])[0] for row in rows]


def test_an_int8_folder_is_close_to_float32(folder, int8_folder):
    """In the scores of one token: those of longer ones are of other hypotheses."""
    exact, close = (
        runner_of(one).Translator(one, threads=1, max_new_tokens=1).search(source_rows(48))
        for one in (folder, int8_folder)
    )
    for one, other in zip(exact, close, strict=True):
        assert other[0].score == pytest.approx(one[0].score, abs=0.1)


def test_what_the_engine_onnx_cannot_do_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"is no export for ONNX: .*--format onnx"):
        Translator(tmp_path, engine="onnx")
    with pytest.raises(ValueError, match=r"does not change bad_words_ids, top_k; it has early"):
        Translator(folder, engine="onnx", top_k=3, bad_words_ids=[[3]])
    with pytest.raises(ValueError, match="dtype='int8' is for the engine torch"):
        Translator(folder, engine="onnx", dtype="int8")


def test_graphs_name_no_file_of_this_machine(folder):
    code = str(Path(files.__file__).parents[2]).encode()
    for name in ("encoder.onnx", "decoder.onnx"):
        assert code not in (folder / name).read_bytes()


def test_one_beam_is_greedy_search(model, folder):
    translator = runner_of(folder).Translator(folder, threads=1, num_beams=1)
    for row in source_rows(9):
        ours = model.generate(torch.tensor([row]), num_beams=1)[0, 1:].tolist()
        assert translator.search([row])[0][0].ids == ours


def test_texts_are_those_of_the_command_translate(model, tokenizer, folder):
    texts = ["one two", "", " \t", "three </s> four \u00e4 \0", "five " * 70]
    found = runner_of(folder).Translator(folder, threads=1).translate(texts)
    assert found == translate(model, tokenizer, texts)
    assert found[1] == found[2] == ""
    with pytest.raises(ValueError, match="list of texts, and 1 to num_beams=4"):
        runner_of(folder).Translator(folder).n_best(["one"], 5)


def test_padding_that_a_tokenizer_was_saved_with_is_not_exported(folder):
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert saved["padding"] is None
    assert saved["truncation"] is None


def typed_in(folder, text, *options):
    command = [sys.executable, "-c", BLOCKED, str(folder / "translate.py"), *options]
    locale = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, input=text, env=locale, capture_output=True, check=False)


def test_line_ends_are_no_part_of_a_sentence(folder, tmp_path):
    keeping = shutil.copytree(folder, tmp_path / "keeping")
    saved = json.loads((keeping / "tokenizer.json").read_text(encoding="utf-8"))
    saved["normalizer"] = None  # white space is a token, and so a line end would be one
    (keeping / "tokenizer.json").write_text(json.dumps(saved), encoding="utf-8")
    translator = runner_of(keeping).Translator(keeping, threads=1)
    lines = ["one two", "", "\ufefffive", "three "]
    expected = "".join(f"{text}\n" for text in translator.translate(lines))
    assert translator.translate(["one two\n"])[0] not in expected.split("\n")
    for end in ("\n", "\r\n"):
        text = "\ufeff" + "".join(line + end for line in lines)
        done = typed_in(keeping, text.encode())
        assert (done.stdout.decode(), done.stderr, done.returncode) == (expected, b"", 0)


def test_the_program_runs_without_torch(folder):
    def typed(text, *options):
        return typed_in(folder, text, *options)

    texts = runner_of(folder).Translator(folder).translate(["one two", "", "three"])
    done = typed(b"\xef\xbb\xbfone two\n\nthree")
    assert (done.stdout.decode(), done.returncode) == ("".join(f"{t}\n" for t in texts), 0)
    rows = [
        line.split("\t")
        for line in typed(b"one two\n\n", "--n_best", "2").stdout.decode().splitlines()
    ]
    assert [row[0] for row in rows] == ["1", "1"]
    assert rows[0][2] == " ".join(texts[0].split())
    for done in (typed(b"one\n\xff\n"), typed(b"one\n", "--n_best", "0")):
        assert done.returncode == 1
        assert done.stderr.decode().startswith("error: ")
        assert done.stderr.count(b"\n") == 1
    assert done.stderr.endswith(b"num_beams=4\n")
    assert typed(b"one\ncaf\xe9 two\n").stderr.endswith(rb"b'caf\xe9 two\n'" + b"\n")
    command = [sys.executable, folder / "translate.py"]
    assert without_reader(command, b"one\n") == (-signal.SIGPIPE, b"")


def test_the_program_is_short():
    assert len(RUNNER.read_text().splitlines()) <= 200


def test_the_generation_config_of_a_converted_model_may_be_exported(model, tokenizer, tmp_path):
    model = copy.deepcopy(model)
    model.generation_config._from_model_config = False  # as the converters of Marian and FSMT
    model.generation_config.output_attentions = model.generation_config.output_hidden_states = False
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    load_for_export(str(tmp_path / "ours"))


def test_a_model_of_opus_translates_with_the_ids_of_marian_tokenizer(tmp_path):
    theirs, slow = opus.write_folder(
        tmp_path / "theirs", max_position_embeddings=64, encoder_layers=1, decoder_layers=1
    )
    assert theirs.generation_config.output_attentions is False  # as transformers saves it
    ours = convert_marian(
        MarianOptions(input=str(tmp_path / "theirs"), output=str(tmp_path / "ours"))
    )
    folder = export(ExportOptions(model=str(ours), output=str(tmp_path / "x"), format="onnx"))
    translator = runner_of(folder).Translator(folder, threads=1)
    texts = [
        *opus.SOURCES,
        "A  house\tby  ",
        "tha\u0301t \ufb01ne lake?",
        "two </s> \u65e5\u672c",
    ]
    found = translator.n_best(texts, BEAMS)
    for text, hypotheses in zip(texts, found, strict=True):
        row = slow(text).input_ids
        assert translator.tokenizer.encode(text).ids == row
        results = theirs.generate(torch.tensor([row]), num_return_sequences=BEAMS)[:, 1:].tolist()
        assert [one.ids for one in hypotheses] == [ids[: ids.index(0) + 1] for ids in results]
        assert [one.text for one in hypotheses] == slow.batch_decode(
            results, skip_special_tokens=True
        )


def test_codes_and_added_tokens_and_missing_pieces_of_a_marian_tokenizer(tmp_path):
    opus.write_tokenizer(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    vocabulary[">>fra<<"] = vocabulary.pop("▁boat")
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    slow = MarianTokenizer.from_pretrained(tmp_path)
    slow.add_tokens(["<b>", AddedToken("<s1>", special=True)])
    fast = with_tokenizer_json(slow)
    assert fast.get_vocab() == slow.get_vocab()
    assert fast("<b>the<s1> lake").input_ids == slow("<b>the<s1> lake").input_ids
    ids = slow("<b>the<s1> lake").input_ids
    assert fast.decode(ids, skip_special_tokens=True) == slow.decode(ids, skip_special_tokens=True)
    assert fast(">>fra<< the lake").input_ids == slow(">>fra<< the lake").input_ids
    text = "the boat"
    assert slow.unk_token_id in slow(text).input_ids
    assert slow.unk_token_id not in fast(text).input_ids
    assert fast.decode(fast(text).input_ids, skip_special_tokens=True) == text
    space = slow.convert_tokens_to_ids("▁")
    assert [fast.decode([space] * count) for count in range(3)] == ["", "", ""]
    slow.encoder["later"] = 99
    with pytest.raises(ValueError, match=r"vocab\.json must have the ids .* 'later' has the id 99"):
        with_tokenizer_json(slow)


def test_what_the_export_cannot_express_is_named_in_one_line(model, tokenizer, tmp_path):
    output = str(tmp_path / "onnx")

    def refused(pattern, ours, **options):
        with pytest.raises((ValueError, OSError, ImportError), match=pattern) as caught:
            export(ExportOptions(model=str(ours), format="onnx", **{"output": output, **options}))
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "onnx").exists()

    model = copy.deepcopy(model)
    model.generation_config.update(no_repeat_ngram_size=3, bad_words_ids=[[5, 6]])
    model.config.eos_token_id = model.generation_config.eos_token_id = [1, 2]
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    refused(r"no_repeat_ngram_size=3 .*\[\[5, 6\]\].*eos_token_id=\[1, 2\]", tmp_path / "ours")
    shutil.copytree(tmp_path / "ours", tmp_path / "words")
    words = Tokenizer(WordLevel(tokenizer.get_vocab(), unk_token="<unk>"))
    settings = {"eos_token": "</s>", "clean_up_tokenization_spaces": True}
    TokenizersBackend(tokenizer_object=words, **settings).save_pretrained(tmp_path / "words")
    refused("clean_up_tokenization_spaces=True of the tokenizer", tmp_path / "words")
    refused("no such folder", tmp_path / "nowhere")
    refused("exists and is not an empty folder", tmp_path / "ours", output=str(tmp_path / "ours"))
    refused(
        "other weights than its config.json says", encoder_only(tmp_path / "encoder", tokenizer)
    )
    with pytest.raises(ValueError, match="dtype='bfloat16': choose one of float32, int8 for onnx"):
        ExportOptions(model="m", output="o", format="onnx", dtype="bfloat16")


def test_a_missing_library_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript.*\[onnx\]"):
        export(ExportOptions(model="m", output=str(tmp_path / "o"), format="onnx"))


# --- what takes longer ---------------------------------------------------------------------------


@pytest.mark.release
def test_shapes_of_other_models_give_the_same_hypotheses(tokenizer, tmp_path, monkeypatch):
    """Everything a config may say, large weights in a file beside the graph, int8."""
    rows = source_rows(9)
    monkeypatch.setattr(files, "LARGEST_FILE", 1000)
    shapes = {
        "three": {"decoder_layers": 3, "attention_bias": True, "lm_head_bias": True},
        "two tables": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 271},
        "learned": {"position_embedding_type": "learned", "max_position_embeddings": 70},
        "wide": {"head_dim": 5, "v_head_dim": 7, "final_layer_norm": True},
    }
    for name, changes in shapes.items():
        ours = lively_translator(**changes)
        ours.generation_config.update(bad_words_ids=[[7], [9]], renormalize_logits=name == "wide")
        ours.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        options = {"model": str(tmp_path / name), "format": "onnx"}
        folder = export(ExportOptions(output=str(tmp_path / f"{name}-onnx"), **options))
        assert (folder / "decoder.onnx.data").is_file()
        found = runner_of(folder).Translator(folder, threads=1).search(rows)
        expected = n_best_of_rows(ours, tokenizer, rows, BEAMS)
        for row, mine, theirs in zip(rows, expected, found, strict=True):
            assert [one.ids for one in theirs] == ids_of(mine, len(row) + 50)
    small = export(ExportOptions(output=str(tmp_path / "int8"), dtype="int8", **options))
    assert {path.suffix for path in small.iterdir()} == {".onnx", ".data", ".json", ".py"}
    # one token: the scores of longer ones are of other hypotheses
    exact, close = (
        runner_of(one).Translator(one, threads=1, max_new_tokens=1).search(rows)
        for one in (folder, small)
    )
    for one, other in zip(exact, close, strict=True):
        assert other[0].score == pytest.approx(one[0].score, abs=0.1)


@pytest.mark.release
def test_the_layout_of_transformers_js_decodes_greedily_as_we_do(tokenizer, tmp_path):
    """As transformers.js calls the graphs: an empty cache first, then what the last step gave."""
    ours = lively_translator(decoder_attention_heads=3)
    ours.generation_config.max_new_tokens = 12
    ours.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    given = {"model": str(tmp_path / "ours"), "format": "onnx", "layout": "transformers.js"}
    folder = export(ExportOptions(output=str(tmp_path / "js"), **given))
    written = json.loads((folder / "generation_config.json").read_text())
    assert (written["num_beams"], written["max_new_tokens"]) == (1, 12)
    assert str(tmp_path) not in (folder / "config.json").read_text()
    encoder = onnxruntime.InferenceSession(folder / "onnx" / "encoder_model.onnx")
    decoder = onnxruntime.InferenceSession(folder / "onnx" / "decoder_model_merged.onnx")
    past_inputs = [i for i in decoder.get_inputs() if i.name.startswith("past_key_values")]
    assert {i.shape[0] for i in past_inputs} == {"batch_size"}
    for row in source_rows(6):
        ids = torch.tensor([row])
        expected = ours.generate(ids, num_beams=1)[0].tolist()
        mask = torch.ones_like(ids).numpy()
        (states,) = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask})
        past = {i.name: np.zeros((1, 3, 0, 8), np.float32) for i in past_inputs}
        found = [0]
        while len(found) < len(expected):
            step = {"input_ids": np.array([found[-1:]]), "encoder_hidden_states": states}
            logits, *present = decoder.run(None, {"encoder_attention_mask": mask, **step, **past})
            past = dict(zip(past, present, strict=True))
            found.append(int(logits[0, -1].argmax()))
        assert found == expected
    with pytest.raises(ValueError, match="3 and 2 heads in encoder and decoder"):
        js.check_layout(lively_translator())
    with pytest.raises(ValueError, match=r"layout='transformers\.js' needs --format onnx"):
        ExportOptions(model="m", output="o", layout="transformers.js")
