"""A tokenizer with a dictionary per side survives saving, text_target and collators."""

import json
import pickle
import sys

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from hf_vanilla import VanillaFairseqTokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SOURCE = [*SPECIAL, "the", "house", "lake"]
TARGET = [*SPECIAL, "See", "das", "Haus", "house"]


@pytest.fixture
def backend():
    words = dict.fromkeys([*SOURCE, *TARGET])
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return backend


@pytest.fixture
def make(backend):
    def made(**others):
        names = dict(
            zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True)
        )
        told = {"source_vocab_size": len(SOURCE), "target_pieces": TARGET, **names, **others}
        return VanillaFairseqTokenizer(tokenizer_object=backend, **told)

    return made


def test_each_side_has_its_own_ids(make):
    batch = make()("the house See", text_target="das Haus house lake")
    assert batch.input_ids == [4, 5, 3, 2]
    assert batch.labels == [5, 6, 7, 3, 2]


def test_ids_decode_as_target_tokens(make):
    tokenizer = make()
    assert tokenizer.batch_decode([[5, 6], [4]]) == ["dasHaus", "See"]
    assert tokenizer.decode(6) == "Haus"


def test_one_dictionary_serves_both_sides_where_the_target_has_none(make):
    batch = make(target_pieces=None)("the See", text_target="the See")
    assert batch.input_ids == batch.labels == [4, 3, 2]


def test_after_a_target_comes_a_source_again(make):
    tokenizer = make()
    tokenizer(text_target="das")
    assert tokenizer("house").input_ids == [5, 2]
    assert tokenizer.encode("house") == [5, 2]


def test_its_length_is_that_of_the_source_dictionary(make):
    assert len(make()) == make().vocab_size == len(SOURCE)


@pytest.mark.parametrize(
    "add",
    [
        lambda tokenizer: tokenizer.add_tokens("<2de>"),
        lambda tokenizer: tokenizer.add_special_tokens({"additional_special_tokens": ["<2de>"]}),
    ],
)
def test_a_token_that_the_dictionary_lacks_is_refused(make, add):
    tokenizer = make()
    before = tokenizer("the <2de> house").input_ids
    with pytest.raises(ValueError, match="<2de>: a fairseq dictionary is fixed"):
        add(tokenizer)
    assert tokenizer("the <2de> house").input_ids == before


def test_it_loads_from_a_folder_with_all_its_settings(make, tmp_path):
    make(use_moses=True, source_lang="en", target_lang="de").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vanilla"}))
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is VanillaFairseqTokenizer
    again.save_pretrained(tmp_path / "again")
    for folder in (tmp_path, tmp_path / "again"):
        tokenizer = VanillaFairseqTokenizer.from_pretrained(folder)
        batch = tokenizer("the house", text_target="das Haus")
        assert (batch.input_ids, batch.labels) == ([4, 5, 2], [5, 6, 2])


def test_a_batch_is_padded_with_padding_and_its_labels_with_what_never_counts(make):
    tokenizer = make()
    rows = [tokenizer("the house", text_target="das"), tokenizer("the", text_target="das Haus See")]
    batch = DataCollatorForSeq2Seq(tokenizer)(rows)
    assert batch["input_ids"].tolist() == [[4, 5, 2], [4, 2, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[5, 2, -100, -100], [5, 6, 4, 2]]
    padded = tokenizer(["the house", "the"], padding=True, return_tensors="pt")
    assert padded.input_ids.tolist() == [[4, 5, 2], [4, 2, 1]]


def test_a_text_that_is_too_long_keeps_its_end(make):
    ids = make()("the house the house", truncation=True, max_length=3).input_ids
    assert ids == [4, 5, 2]


def test_moses_splits_and_lowercases_by_its_options(make):
    languages = {"source_lang": "en", "target_lang": "de"}
    assert make(use_moses=True, **languages)("the,house").input_ids == [4, 3, 5, 2]
    assert make(use_moses=False, do_lower_case=True)("THE HOUSE").input_ids == [4, 5, 2]


def test_without_sacremoses_the_error_names_the_remedy(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # its tools for other languages are kept
    with pytest.raises(ImportError, match="pip install sacremoses"):
        make(use_moses=True, source_lang="fi", target_lang="de")("the house")


def test_it_goes_to_another_process_as_it_is(make):
    tokenizer = make(use_moses=True, source_lang="en", target_lang="de")
    expected = tokenizer("the,house").input_ids
    assert pickle.loads(pickle.dumps(tokenizer))("the,house").input_ids == expected


USE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
batch = tokenizer("the house", text_target="das Haus")
print(json.dumps([batch.input_ids, batch.labels, tokenizer.decode(batch.labels[:1])]))
"""


@pytest.mark.slow
def test_it_loads_where_the_package_is_not_installed(
    program_without_package, make, tmp_path, monkeypatch
):
    monkeypatch.setattr(VanillaFairseqTokenizer, "_auto_class", "AutoTokenizer")
    make().save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": "marian"}))
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    words = ("python", "-c", USE, tmp_path / "saved")
    done = program_without_package(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[4, 5, 2], [5, 6, 2], "das"]
