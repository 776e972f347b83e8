"""The language model goes on writing: every search, padding, cache and source."""

import pytest
import torch
from lively import EOS, PAD, V, assert_same_sentence, lively_model, row_of, sources
from torch.testing import assert_close

from hf_vanilla import VanillaForCausalLM

STEPS = 11
# a score is a float32 sum of at most eleven log probabilities
SCORES = {"rtol": 1e-5, "atol": 1e-5}
GREEDY_AND_BEAM = pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beam"])
EACH_CACHE = pytest.mark.parametrize("cache", ["dynamic", "static", None])


@pytest.fixture
def model():
    return lively_model(VanillaForCausalLM, decoder_layers=3)


def decode(model, batch, cache="dynamic", **extra):
    settings = {"max_new_tokens": STEPS, "return_dict_in_generate": True, "output_scores": True}
    if cache == "static":
        settings["cache_implementation"] = cache
    settings["use_cache"] = cache is not None
    return model.generate(**batch, **{**settings, **extra})


def greedy_by_hand(model, prompt, **source):
    found = prompt["input_ids"][0].tolist()
    length = len(found)
    while len(found) < length + STEPS and (len(found) == length or found[-1] != EOS):
        logits = model(input_ids=torch.tensor([found]), use_cache=False, **source).logits
        found.append(logits[0, -1].argmax().item())
    return found


@pytest.mark.parametrize("length", [1, 3, 7])
def test_greedy_search_takes_the_most_probable_token_in_each_step(model, length):
    prompt = sources(length)
    found = decode(model, prompt, num_beams=1).sequences[0].tolist()
    assert found == greedy_by_hand(model, prompt)
    assert len(set(found[length:])) > 2


@GREEDY_AND_BEAM
@EACH_CACHE
def test_prompts_padded_on_the_left_go_on_as_they_do_alone(model, num_beams, cache):
    batch = sources(2, 7, 5, side="left")
    settings = {"num_beams": num_beams, "num_return_sequences": num_beams}
    together = decode(model, batch, cache, **settings).sequences
    for row in range(3):
        prompt = row_of(batch, row)
        alone = decode(model, prompt, **settings).sequences
        length = prompt["input_ids"].shape[1]
        for beam in range(num_beams):
            in_batch = together[row * num_beams + beam, 7:]
            assert_same_sentence(in_batch, alone[beam, length:])


def test_a_missing_mask_is_made_from_the_padding(model):
    batch = sources(2, 7, 5, side="left")
    expected = decode(model, batch, num_beams=3).sequences
    assert torch.equal(
        decode(model, {"input_ids": batch["input_ids"]}, num_beams=3).sequences, expected
    )


def test_sampling_with_one_token_left_is_greedy_and_otherwise_a_seed_decides(model):
    batch = sources(2, 7, 5, side="left")
    greedy = decode(model, batch, num_beams=1).sequences
    sampled = decode(model, batch, num_beams=1, do_sample=True, top_k=1).sequences
    assert torch.equal(sampled, greedy)
    samples = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        samples.append(decode(model, batch, do_sample=True, temperature=3.0).sequences)
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])


def test_the_score_of_a_beam_is_the_mean_log_probability_of_its_tokens(model):
    prompt = sources(5)
    found = decode(model, prompt, num_beams=3, num_return_sequences=3)
    assert len({tuple(row) for row in found.sequences.tolist()}) == 3
    for sequence, score in zip(found.sequences.tolist(), found.sequences_scores, strict=True):
        said = sequence[5:]
        said = said[: said.index(EOS) + 1] if EOS in said else said
        whole = torch.tensor([sequence[:5] + said])
        log_probs = model(input_ids=whole[:, :-1], use_cache=False).logits[0, 4:].log_softmax(-1)
        expected = log_probs[range(len(said)), said].mean()
        assert_close(score.double(), expected, **SCORES)


def test_greedy_transition_scores_are_the_log_probabilities_of_the_tokens(model):
    prompt = sources(5)
    found = decode(model, prompt, num_beams=1, suppress_tokens=[PAD, EOS])
    scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    logits = model(input_ids=found.sequences[:, :-1]).logits[0, 4:].detach()
    logits[:, :2] = float("-inf")  # as the rule left them
    expected = logits.log_softmax(-1).gather(-1, found.sequences[0, 5:, None]).squeeze(-1)
    assert_close(scores[0].double(), expected, **SCORES)


def test_vectors_of_a_prompt_are_followed_by_what_follows_its_ids(model):
    batch = sources(2, 7, 5, side="left")
    vectors = model.get_input_embeddings()(batch["input_ids"])
    expected = decode(model, batch, num_beams=1).sequences[:, 7:]
    given = {"inputs_embeds": vectors, "attention_mask": batch["attention_mask"]}
    assert torch.equal(decode(model, given, num_beams=1).sequences, expected)


@pytest.mark.parametrize("helper", ["smaller", "lookup"])
def test_assisted_decoding_equals_greedy_decoding(model, helper):
    prompt = sources(5)
    expected = decode(model, prompt, num_beams=1).sequences
    if helper == "smaller":
        helped = {"assistant_model": lively_model(VanillaForCausalLM, decoder_layers=1)}
    else:
        helped = {"prompt_lookup_num_tokens": 3}
    found = decode(model, prompt, num_beams=1, **helped).sequences
    assert_same_sentence(found[0], expected[0])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_prompt_read_in_chunks_is_followed_by_the_same(model, size):
    batch = sources(2, 7, 5, side="left")
    expected = decode(model, batch, num_beams=1).sequences
    assert torch.equal(decode(model, batch, prefill_chunk_size=size).sequences, expected)


@GREEDY_AND_BEAM
@EACH_CACHE
def test_a_source_of_its_own_goes_with_each_row_and_beam(num_beams, cache):
    model = lively_model(VanillaForCausalLM, decoder_layers=3, add_cross_attention=True)
    batch = sources(2, 7, 5, side="left")
    encoded = 3 * torch.randn(3, 4, 12).double()
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0]])
    given = {**batch, "encoder_hidden_states": encoded, "encoder_attention_mask": mask}
    together = decode(model, given, cache, num_beams=num_beams).sequences
    for row in range(3):
        prompt = row_of(batch, row)
        real = mask[row] == 1
        source = {"encoder_hidden_states": encoded[row : row + 1, real]}
        alone = decode(model, {**prompt, **source}, num_beams=num_beams).sequences[0]
        if num_beams == 1:
            assert alone.tolist() == greedy_by_hand(model, prompt, **source)
        length = prompt["input_ids"].shape[1]
        assert_same_sentence(together[row, 7:], alone[length:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_in_the_vocabulary_beside_a_row_of_padding(model, dtype):
    batch = sources(2, 7, 5, side="left")
    batch["attention_mask"][1] = 0
    found = decode(model.to(dtype), batch, num_beams=3)
    assert found.sequences_scores.isfinite().all()
    assert ((found.sequences >= 0) & (found.sequences < V)).all()
