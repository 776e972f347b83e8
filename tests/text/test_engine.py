"""The engine of the page in JavaScript, run by node, against the tokenizer and `generate()`."""

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from num2words import num2words
from tokenizers import AddedToken, Regex, normalizers

from hf_vanilla import (
    VanillaConfig,
    VanillaForConditionalGeneration,
    demo_model,
    quantize,
    train_tokenizer,
)
from hf_vanilla.models.quantization_vanilla import quantized
from hf_vanilla.text.attentions import attentions, readable_tokens
from hf_vanilla.text.loading import load_translator
from hf_vanilla.text.n_best import SearchRecord, best_translations, n_best_of_rows

NODE = shutil.which("node")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NODE is None, reason="node is not installed")]

RUNNER = Path(__file__).with_name("run_engine.mjs")
PIECES = (
    *(
        "🙂",
        "👩\u200d👩\u200d👧",
        "שלום",
        "مرحبا",
        "中文",
        "e\u0301",
        "ß",
        "½",
        "٣",
        "12",
        "'s",
        "don't",
    ),
    *(" ", "  ", "\n", "\t", "\0", "\x85", "\xa0", "\u2003", "\u200f", "\ufeff", "</s>", "<pad>"),
)
LONG_WORDS = ["a" * 40_000, "".join(random.Random(3).choices("abcdeinrtzwu", k=40_000))]
SIZES = {
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
}
OTHER_SHAPES = {
    "learned": {"position_embedding_type": "learned", "max_position_embeddings": 31, "head_dim": 5},
    "two_tables": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "lm_head_bias": True,
        "zero_pad_embedding": False,
        "scale_embedding": False,
        "activation_function": "gelu_new",
    },
    "biases": {
        "attention_bias": True,
        "final_layer_norm": True,
        "v_head_dim": 7,
        "position_layout": "concatenated",
        "position_frequencies": "tensor2tensor",
        "position_offset": 2,
        "activation_function": "swish",
    },
}


def odd_texts(count):
    """Texts that nobody types: emoji, several directions, special tokens, any character."""
    draw = random.Random(7)
    ranges = ((0, 0x250), (0, 0xD800), (0xE000, 0x110000))

    def piece():
        any_character = chr(draw.randrange(*draw.choice(ranges)))
        return draw.choice(PIECES) if draw.random() < 0.6 else any_character

    lengths = [draw.randrange(1, 25) for _ in range(count)]
    return ["", " ", *("".join(piece() for _ in range(length)) for length in lengths)]


def number_words(count):
    draw = random.Random(11)
    return [num2words(draw.randrange(10 ** draw.randrange(1, 7))) for _ in range(count)]


def engine_answers(folder, jobs):
    """What the engine answers to all jobs, in one process."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [NODE, RUNNER, folder / "jobs.json", folder / "answers.json"]
    subprocess.run(command, check=True, timeout=3_000)
    return json.loads((folder / "answers.json").read_text())


def write_other_model(name, folder, tokenizer):
    """A random model of another shape, sharp enough that its best tokens are no ties."""
    config = VanillaConfig(vocab_size=len(tokenizer), **SIZES, **OTHER_SHAPES[name])
    model = VanillaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weights in model.parameters():  # norms and biases stay near 1 and 0
            noise = torch.randn_like(weights)
            weights.copy_(weights + 0.1 * noise if weights.dim() == 1 else 0.5 * noise)
    if name == "biases":
        model.generation_config.update(length_penalty_form="power", early_stopping=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_int8_model(folder):
    """The package's model with int8 weights, and in float32 with the same rounded weights."""
    model, tokenizer = load_translator(demo_model(), dtype="float32")
    quantize(load_translator(demo_model(), dtype="float32")[0]).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                levels, scale = quantized(weights)
                weights.copy_(levels * scale)
    return model, tokenizer


def assert_same_search(model, tokenizer, text, options, answer):
    """N-best list, scores, and all candidates of all steps."""
    record = SearchRecord(options["num_beams"])
    found = best_translations(model, tokenizer, text, record=record, **options)
    assert [one["ids"] for one in answer["hypotheses"]] == [one.ids for one in found]
    assert [one["text"] for one in answer["hypotheses"]] == [one.text for one in found]
    scores = [one["score"] for one in answer["hypotheses"]]
    assert scores == pytest.approx([one.score for one in found], abs=1e-4)
    steps = record.steps([one.ids for one in found], {model.generation_config.eos_token_id})
    for theirs, ours in zip(steps, answer["steps"], strict=True):
        facts = [(one["id"], one["parent"], one["status"], one["rank"]) for one in ours]
        assert facts == [(one.ids[-1], one.parent, one.status, one.rank) for one in theirs]
        log_probs = [one["logProb"] for one in ours]
        assert log_probs == pytest.approx([one.log_prob for one in theirs], abs=1e-4)


def assert_same_attentions(model, tokenizer, text, ids, answer):
    seen = attentions(model, tokenizer, text, translation=ids)
    for side in ("source", "target", "read"):
        assert answer[side] == getattr(seen, side)
    for kind in ("encoder", "decoder", "cross"):
        for rows, weights in zip(answer[kind], getattr(seen, kind), strict=True):
            for t, row in enumerate(rows):  # of the decoder, without later positions
                assert_close(row, weights[:, t, : len(row) // len(weights)].flatten())
    assert_close(answer["logProbs"], seen.log_probs, tolerance=1e-4)


def assert_close(values, tensor, tolerance=1e-5):
    given = torch.tensor(values, dtype=torch.float32)
    torch.testing.assert_close(given, tensor, atol=tolerance, rtol=0)


class Comparison:
    """The jobs of one process of node, and the models in Python that answer the same."""

    def __init__(self, folder):
        self.folder, self.jobs, self.sides = folder, [], []

    def add(self, name, texts, sentences, side=None, **beam_options):
        """Texts to encode and decode, sentences to translate by 4 beams and by 1."""
        model, tokenizer = side or load_translator(name, dtype="float32")
        both = ({"num_beams": 4, **beam_options}, {"num_beams": 1})
        calls = [[text, options] for options in both for text in sentences]
        looks = [
            [text, best_translations(model, tokenizer, text, num_beams=1)[0].ids]
            for text in sentences[:3]
        ]
        ids = tokenizer(texts, verbose=False).input_ids
        job = {"encode": texts, "decode": [row[:-1] for row in ids], "attentions": looks}
        self.jobs.append({"folder": name, **job, "translate": calls})
        self.sides.append((model, tokenizer))

    def check(self):
        answers = engine_answers(self.folder, self.jobs)
        for job, side, answer in zip(self.jobs, self.sides, answers, strict=True):
            tokenizer = side[1]
            assert answer["ids"] == tokenizer(job["encode"], verbose=False).input_ids
            decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in job["decode"]]
            assert answer["texts"] == decoded
            assert answer["readable"] == [readable_tokens(tokenizer, row) for row in job["decode"]]
            for (text, options), one in zip(job["translate"], answer["translations"], strict=True):
                assert_same_search(*side, text, options, one)
            for (text, ids), one in zip(job["attentions"], answer["attentions"], strict=True):
                assert_same_attentions(*side, text, ids, one)


def test_engine_equals_python_on_texts_translations_and_attention_weights(tmp_path):
    compared = Comparison(tmp_path)
    texts = [*odd_texts(60), *number_words(40), *LONG_WORDS]
    compared.add(demo_model(), texts, number_words(8))
    int8 = write_int8_model(tmp_path / "int8")
    compared.add(str(tmp_path / "int8"), ["one"], number_words(3), side=int8)
    tokenizers = {
        name: train_tokenizer(["ein Haus am See", "a house by the lake"], vocab_size=280)
        for name in OTHER_SHAPES
    }
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    strip = normalizers.Sequence([normalizers.Strip(), spaces])  # others have that of training
    tokenizers["learned"].backend_tokenizer.normalizer = strip
    sentences = ["a house", " ein \u00a0Haus  am\u2003See ", "🙂 see"]
    for name, tokenizer in tokenizers.items():
        write_other_model(name, tmp_path / name, tokenizer)
        # a random model repeats itself, and long repetitions are ties
        compared.add(str(tmp_path / name), sentences, sentences, max_new_tokens=9)
    compared.check()


def test_engine_reads_the_tags_of_target_languages_as_python_does(tmp_path):
    tokenizer = train_tokenizer(["ein Haus am See", "a house by the lake"], vocab_size=280)
    # one as a mixture adds it, one that is found before the text is normalized
    tags = [AddedToken("<de>", rstrip=True), AddedToken("<d>", rstrip=True, normalized=False)]
    tokenizer.add_tokens([*tags, "<el>"])
    tokenizer.clean_up_tokenization_spaces = True  # means nothing for BPE
    write_other_model("two_tables", tmp_path / "tags", tokenizer)
    texts = ["<de> a house", " <de>\u00a0 <d>  see<el> a <de", "<d><de>  ", "<el>  a  <el>See"]
    compared = Comparison(tmp_path)
    compared.add(str(tmp_path / "tags"), texts, texts[:1], max_new_tokens=9)
    compared.check()


def test_engine_refuses_by_name_what_it_does_not_compute(tmp_path):
    jobs, files = [], Path(demo_model())
    refused = {
        "do_sample=true": ("generation_config.json", {"do_sample": True}),
        'activation_function="gelu"': ("config.json", {"activation_function": "gelu"}),
        'model_type="vanilla_vit"': ("config.json", {"model_type": "vanilla_vit"}),
        'normalizer="Lowercase"': ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}),
    }
    for index, (file, changes) in enumerate(refused.values()):
        folder = tmp_path / str(index)
        shutil.copytree(files, folder)
        settings = json.loads((files / file).read_text()) | changes
        (folder / file).write_text(json.dumps(settings))
        jobs.append({"folder": str(folder)})
    calls = {
        "temperature: the page": ["one", {"temperature": 2}],
        "num_beams=0: give": ["one", {"num_beams": 0}],
        "the text has 1025 tokens": ["x" * 1024, {}],
        "half a character": ["\ud800", {}],
    }
    jobs.append({"folder": demo_model(), "translate": list(calls.values())})
    *answers, ours = engine_answers(tmp_path, jobs)
    for message, answer in zip(refused, answers, strict=True):
        assert answer["error"].startswith(f"{message}: the page does not compute this")
    for message, answer in zip(calls, ours["translations"], strict=True):
        assert message in answer["error"]


@pytest.mark.release
def test_engine_equals_python_on_3000_texts_and_3000_translations(tmp_path):
    model, tokenizer = load_translator(demo_model(), dtype="float32")
    sentences = number_words(3_000)
    texts = [*odd_texts(996), *LONG_WORDS, *sentences[:2_000]]
    calls = [[text, {"num_beams": 4}] for text in sentences]
    job = {"folder": demo_model(), "encode": texts, "translate": calls}
    [answer] = engine_answers(tmp_path, [job])
    assert answer["ids"] == tokenizer(texts, verbose=False).input_ids
    for start in range(0, len(sentences), 50):
        rows = tokenizer(sentences[start : start + 50]).input_ids
        batch = n_best_of_rows(model, tokenizer, rows, 4, num_beams=4)
        for found, one in zip(batch, answer["translations"][start : start + 50], strict=True):
            assert [best["ids"] for best in one["hypotheses"]] == [best.ids for best in found]
            scores = [best["score"] for best in one["hypotheses"]]
            assert scores == pytest.approx([best.score for best in found], abs=1e-4)
