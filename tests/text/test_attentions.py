"""Attention weights as data: values, readable tokens, and a model that does not change."""

import copy
import threading

import opus
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BatchEncoding, MarianTokenizer

from hf_vanilla import VanillaEncoderModel, train_tokenizer
from hf_vanilla.convert.fairseq_tokenizer import build_tokenizer
from hf_vanilla.text.attentions import attentions, readable_tokens, word_starts

SENTENCE = "three one four"
KINDS = ["encoder", "decoder", "cross"]


@pytest.fixture(scope="module")
def computed(trained):
    return attentions(*trained, SENTENCE)


# --- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "starts"),
    [
        (["seven", "␣forty", "-", "two", "</s>"], [0, 1, 4]),
        (["zwei", "und", "vierzig", "</s>"], [0, 3]),
        (["<start>", "a", "b"], [0, 1]),
        (["T", "wo␣", "men␣", "␣", "?", "</s>"], [0, 2, 3, 5]),
        (["a", "↵", "b", "", "<>"], [0, 1]),
        ([], []),
    ],
)
def test_words_begin_behind_spaces_and_beside_special_tokens(tokens, starts):
    assert word_starts(tokens) == starts


# --- weights -----------------------------------------------------------------------------------


@pytest.fixture
def deep(tiny_model):
    """2 layers of 3 heads in the encoder, 5 of 2 in the decoder; ids of 5 and 3 tokens."""

    class Characters:
        """A tokenizer of single characters."""

        model_max_length, all_special_tokens, init_kwargs = 61, (), {}

        def __call__(self, text, **_):
            ids = torch.tensor([[*map(ord, text)]]) % 41 + 2
            return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

        def convert_ids_to_tokens(self, ids):
            return [str(number) for number in ids]

    return attentions(tiny_model, Characters(), "abcde", translation=[7, 11, 1])


def test_weights_have_an_entry_for_every_layer_head_and_pair_of_tokens(deep):
    assert deep.encoder.shape == (2, 3, 5, 5)
    assert deep.decoder.shape == (5, 2, 3, 3)
    assert deep.cross.shape == (5, 2, 3, 5)


def test_decoder_reads_the_token_that_it_wrote_one_step_before(deep):
    assert deep.target == ["7", "11", "1"]
    assert deep.read == ["<start>", "7", "11"]
    assert len(deep.source) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights_are_positive_and_sum_to_one(computed, kind):
    weights = getattr(computed, kind)
    sums = weights.sum(-1)
    assert weights.min() >= 0
    # a softmax in float32
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


def test_decoder_attention_to_later_positions_is_zero(computed):
    assert computed.decoder.shape[-1] > 2
    assert computed.decoder.triu(1).abs().max() == 0
    assert computed.encoder.triu(1).abs().max() > 0


def test_row_t_holds_the_weights_of_the_step_that_wrote_token_t(computed, trained):
    model, tokenizer = trained
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    generated = model.generate(**inputs)
    eager = AutoModelForSeq2SeqLM.from_pretrained(model.name_or_path, attn_implementation="eager")
    with torch.no_grad():
        outputs = eager.eval()(**inputs, decoder_input_ids=generated[:, :2], output_attentions=True)
    # while the second token was being written; the prefix alone against the whole sentence: other
    # matrix sizes, the same float32 sums
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(
        computed.cross[0, :, 1], outputs.cross_attentions[0][0, :, -1], **close
    )
    written = outputs.decoder_attentions[0][0, :, -1]
    torch.testing.assert_close(computed.decoder[0, :, 1, :2], written, **close)
    torch.testing.assert_close(computed.encoder[0], outputs.encoder_attentions[0][0], **close)


def test_tokens_are_those_of_the_translation_and_its_end(computed, trained):
    model, tokenizer = trained
    ids = model.generate(**tokenizer(SENTENCE, return_tensors="pt"))[0]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert computed.target[-1] == computed.source[-1] == "</s>"
    assert "".join(computed.target[:-1]) == text.replace(" ", "␣")
    assert "".join(computed.source[:-1]) == SENTENCE.replace(" ", "␣")


@pytest.mark.parametrize("saved", [{"num_return_sequences": 4}, {"return_dict_in_generate": True}])
def test_settings_of_what_generate_returns_do_not_change_the_translation(
    trained, monkeypatch, saved
):
    model, tokenizer = trained
    sentence = "two"  # some of its hypotheses are longer than the best one
    monkeypatch.setattr(model.generation_config, "num_beams", 4)
    expected = attentions(model, tokenizer, sentence).target
    for name, value in saved.items():
        monkeypatch.setattr(model.generation_config, name, value)
    assert attentions(model, tokenizer, sentence).target == expected


@pytest.mark.parametrize("form", ["text", "ids"])
def test_a_given_translation_is_used(trained, form):
    model, tokenizer = trained
    ids = tokenizer(text_target="neun neun").input_ids
    given = attentions(
        model, tokenizer, SENTENCE, translation="neun neun" if form == "text" else ids
    )
    assert "".join(given.target) == "neun␣neun</s>"


# --- the model does not change -----------------------------------------------------------------


def test_model_keeps_its_attention_implementation_while_weights_are_read(trained):
    model, tokenizer = trained
    configs = []
    hook = model.register_forward_pre_hook(
        lambda copied, _: configs.append((model.config, copied.config))
    )
    own = {id(weight) for weight in model.parameters()}
    is_shared = []
    spy = model.register_forward_pre_hook(
        lambda copied, _: is_shared.append({id(w) for w in copied.parameters()} == own)
    )
    attentions(model, tokenizer, SENTENCE, translation="eins")
    hook.remove()
    spy.remove()
    ((before, during),) = configs
    assert (before._attn_implementation, during._attn_implementation) == ("sdpa", "eager")
    assert is_shared == [True]


def test_threads_that_share_a_model_get_the_same_weights_as_one_thread(trained):
    model, tokenizer = trained
    model = copy.deepcopy(model)  # transformers adds its hooks in the first forward: in a thread
    sentences = [SENTENCE, "nine", "five six", "two two two"]
    alone = [attentions(*trained, sentence) for sentence in sentences]
    together = {}

    def compute(i):
        together[i] = attentions(model, tokenizer, sentences[i])

    threads = [threading.Thread(target=compute, args=(i,)) for i in range(len(sentences))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(together) == [0, 1, 2, 3]
    for i, expected in enumerate(alone):
        assert together[i].target == expected.target
        assert torch.equal(together[i].cross, expected.cross)


def test_weights_of_a_training_model_have_no_dropout_and_it_stays_in_training_mode(trained):
    model, tokenizer = copy.deepcopy(trained[0]).train(), trained[1]
    first, again = (attentions(model, tokenizer, SENTENCE, translation="eins") for _ in range(2))
    assert torch.equal(first.encoder, again.encoder)
    assert model.training


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", ["", " ", "\n\t"], ids=repr)
def test_a_blank_sentence_is_refused(trained, sentence):
    with pytest.raises(ValueError, match="the sentence is blank"):
        attentions(*trained, sentence)


@pytest.mark.parametrize("translation", ["", " ", []], ids=repr)
def test_a_blank_translation_is_refused(trained, translation):
    with pytest.raises(ValueError, match="the translation is blank"):
        attentions(*trained, SENTENCE, translation=translation)


def test_a_sentence_longer_than_the_limit_is_refused(trained):
    with pytest.raises(ValueError, match="the sentence has 62 tokens, the model accepts 40"):
        attentions(*trained, "x" * 61)


def test_an_encoder_only_model_is_refused(tiny_config, tiny_tokenizer):
    with pytest.raises(ValueError, match="VanillaEncoderModel does not translate"):
        attentions(VanillaEncoderModel(tiny_config), tiny_tokenizer, "a house")


# --- tokens ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytes_only():
    return train_tokenizer(["a"], vocab_size=258)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a b", ["a", "␣", "b", "</s>"]),
        ("ü", ["⟨C3⟩", "⟨BC⟩", "</s>"]),
        ("漢", ["⟨E6⟩", "⟨BC⟩", "⟨A2⟩", "</s>"]),
        ("…", ["⟨E2⟩", "⟨80⟩", "⟨A6⟩", "</s>"]),
    ],
)
def test_readable_tokens_show_spaces_and_the_bytes_of_split_characters(bytes_only, text, tokens):
    assert readable_tokens(bytes_only, bytes_only(text).input_ids) == tokens


@pytest.mark.parametrize("code", [0x80, 0x7FF, 0xFFFF, 0x10FFFF], ids=hex)
def test_every_byte_of_a_split_character_is_shown_in_hexadecimal(bytes_only, code):
    shown = readable_tokens(bytes_only, bytes_only(chr(code)).input_ids[:-1])
    assert shown == [f"⟨{byte:02X}⟩" for byte in chr(code).encode()]


def test_a_token_of_whole_and_split_characters_shows_both():
    tokenizer = train_tokenizer(["aü aü aü aü"], vocab_size=264)
    token = tokenizer.convert_tokens_to_ids("aÃ")
    assert token != tokenizer.unk_token_id
    assert readable_tokens(tokenizer, [token]) == ["a⟨C3⟩"]


def test_a_fairseq_tokenizer_uses_the_dictionary_of_each_side(tmp_path):
    special, words = ["<s>", "<pad>", "</s>", "<unk>"], ["the", "l@@", "a@@", "k@@", "e"]
    (tmp_path / "codes").write_text("#version: 0.2\nt h\nth e</w>\n", encoding="utf-8")
    sides = [[*special, *words], [*special, *reversed(words)]]
    tokenizer = build_tokenizer(tmp_path / "codes", sides)
    batch = tokenizer("the lake", text_target="the lake")
    assert batch.input_ids == [4, 5, 6, 7, 8, 2]
    assert batch.labels == [8, 7, 6, 5, 4, 2]
    expected = ["the␣", "l", "a", "k", "e␣", "</s>"]  # a space where a word ends
    assert readable_tokens(tokenizer, batch.input_ids, is_source=True) == expected
    assert readable_tokens(tokenizer, batch.labels) == expected


@pytest.mark.parametrize("separate", [False, True])
def test_a_marian_tokenizer_uses_the_vocabulary_of_each_side(tmp_path, separate):
    opus.write_tokenizer(tmp_path, separate=separate)
    tokenizer = MarianTokenizer.from_pretrained(tmp_path)
    batch = tokenizer("a house by the lake", text_target="ein Haus am See")
    source = readable_tokens(tokenizer, batch.input_ids, is_source=True)
    target = readable_tokens(tokenizer, batch.labels)
    assert "".join(source) == "␣a␣house␣by␣the␣lake</s>"
    assert "".join(target) == "␣ein␣Haus␣am␣See</s>"
