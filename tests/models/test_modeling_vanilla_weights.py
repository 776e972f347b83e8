"""The model's weights: who shares them, how they start, and how they come back from disk."""

import math

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.testing import assert_close

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel
from hf_vanilla.models.attention_vanilla import VanillaAttention

B, S, T = 3, 7, 5
SMALL = {
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
}
OWN_TABLES = {
    "vocab_size": 43,
    "decoder_vocab_size": 37,
    "share_encoder_decoder_embeddings": False,
}
# which sides share a table: source, target, output
SHARINGS = {
    "one table": {"vocab_size": 43},
    "output apart": {"vocab_size": 43, "tie_word_embeddings": False},
    "source apart": OWN_TABLES,
    "three tables": {**OWN_TABLES, "tie_word_embeddings": False},
}
EACH_SHARING = pytest.mark.parametrize("sharing", SHARINGS)


def model_with(**changes):
    return VanillaForConditionalGeneration(VanillaConfig(**{**SMALL, **changes})).eval()


def batch(**extra):
    return {
        "input_ids": torch.randint(2, 31, (B, S)),
        "decoder_input_ids": torch.randint(2, 31, (B, T)),
        **extra,
    }


def tables(model):
    inner = model.model
    return inner.encoder.embed_tokens, inner.decoder.embed_tokens, model.lm_head


def tables_saved_in(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    return {name for name in names if "embed" in name or "shared" in name or "lm_head" in name}


@EACH_SHARING
def test_tables_are_one_tensor_exactly_where_the_config_says_so(sharing):
    model = model_with(**SHARINGS[sharing])
    source, target, output = (table.weight for table in tables(model))
    assert (source is target) == (sharing in ("one table", "output apart"))
    assert (target is output) == (sharing in ("one table", "source apart"))
    assert source is not output or sharing == "one table"
    assert source.shape == (43, 12)
    assert target.shape == output.shape == (model.config.target_vocab_size, 12)


@pytest.mark.parametrize(
    ("sharing", "names"),
    [
        ("one table", {"model.shared.weight"}),
        ("output apart", {"model.shared.weight", "lm_head.weight"}),
        (
            "source apart",
            {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"},
        ),
        (
            "three tables",
            {
                "model.encoder.embed_tokens.weight",
                "model.decoder.embed_tokens.weight",
                "lm_head.weight",
            },
        ),
    ],
)
def test_a_shared_table_is_stored_once(tmp_path, sharing, names):
    model_with(**SHARINGS[sharing]).save_pretrained(tmp_path)
    assert tables_saved_in(tmp_path) == names


@EACH_SHARING
def test_a_model_comes_back_from_disk_exactly(tmp_path, sharing):
    model = model_with(**SHARINGS[sharing])
    arguments = batch()
    model.save_pretrained(tmp_path)
    loaded, report = VanillaForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())  # no weight missing, left over or of another shape
    assert torch.equal(loaded(**arguments).logits, model(**arguments).logits)
    source, target, output = (table.weight for table in tables(loaded))
    assert (source is target) == (sharing in ("one table", "output apart"))
    assert (target is output) == (sharing in ("one table", "source apart"))


def test_the_bare_model_finds_its_weights_in_a_file_of_the_whole_one(tmp_path):
    model = model_with(vocab_size=43)
    model.save_pretrained(tmp_path)
    bare, report = VanillaModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    arguments = batch()
    expected = model.model(**arguments).last_hidden_state
    assert torch.equal(bare(**arguments).last_hidden_state, expected)


@EACH_SHARING
def test_tables_that_are_one_stay_one_through_a_training_step(sharing):
    model = model_with(**SHARINGS[sharing]).train()
    before = [table.weight.detach().clone() for table in tables(model)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(2, 31, (B, S))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    source, target, output = (table.weight for table in tables(model))
    assert (source is target) == (sharing in ("one table", "output apart"))
    assert (target is output) == (sharing in ("one table", "source apart"))
    assert not any(
        torch.equal(old, new.weight) for old, new in zip(before, tables(model), strict=True)
    )


def test_padding_is_looked_up_as_zeros_even_when_the_softmax_has_moved_its_row():
    model = model_with(vocab_size=43).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = torch.randint(2, 43, (B, S))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    table = model.model.shared
    assert table.weight[0].abs().max() > 0  # the trap: tied to the output, the row learns
    assert table(torch.tensor([[0, 5]]))[0, 0].abs().max() == 0
    assert torch.equal(table(torch.tensor([[0, 5]]))[0, 1], table.weight[5])


def trained(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        ids = torch.randint(2, 31, (B, S))
        model.train()(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@EACH_SHARING
def test_the_decoder_starts_from_position_zero_alone_after_training_too(sharing):
    model = trained(model_with(**SHARINGS[sharing]))
    seen = []
    model.model.decoder.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    source = torch.randint(2, 31, (B, S))
    model(input_ids=source, decoder_input_ids=torch.zeros(B, 1, dtype=torch.long))
    model.generate(source, num_beams=1, max_new_tokens=1)
    assert len(seen) == 2
    for first in seen:
        # the zero vector plus sin 0, cos 0, sin 0, ...
        assert torch.equal(first, torch.tensor([0.0, 1.0]).repeat(6).expand(B, 1, 12))


def test_another_start_token_begins_with_its_own_vector():
    model = model_with(vocab_size=43, decoder_start_token_id=7)
    first = model.model.decoder.embed(torch.tensor([[7]]), None, None)
    expected = model.model.shared.weight[7] * math.sqrt(12) + torch.tensor([0.0, 1.0]).repeat(6)
    assert_close(first[0, 0], expected)


def test_the_padding_row_changes_only_the_logit_of_padding():
    model = model_with(vocab_size=43)
    arguments = batch()
    arguments["input_ids"][0, 4:] = 0
    arguments["decoder_input_ids"][:, 0] = 0
    before = model(**arguments).logits
    with torch.no_grad():
        model.model.shared.weight[0] += 1.0
    after = model(**arguments).logits
    assert torch.equal(after[..., 1:], before[..., 1:])
    assert not torch.equal(after[..., 0], before[..., 0])


def test_padding_of_another_id_is_looked_up_as_zeros_too():
    model = model_with(vocab_size=43, pad_token_id=7, decoder_start_token_id=7)
    with torch.no_grad():
        model.model.shared.weight.fill_(1.0)
    vectors = model.model.encoder.embed_tokens(torch.tensor([[0, 7, 8]]))
    assert vectors.abs().amax(dim=-1).tolist() == [[1, 0, 1]]


@EACH_SHARING
def test_padding_is_looked_up_as_its_row_where_the_config_says_so(sharing, tmp_path):
    model = model_with(**SHARINGS[sharing], zero_pad_embedding=False)
    rows = [table.weight[0].detach().clone() for table in tables(model)[:2]]
    assert all(row.abs().max() > 0 for row in rows)
    model.save_pretrained(tmp_path)
    again = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    for table, row in zip(tables(again)[:2], rows, strict=True):
        assert torch.equal(table(torch.tensor([0, 5]))[0], row)


WIDE = {
    "vocab_size": 997,
    "d_model": 128,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 509,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 263,
}


@pytest.fixture
def wide_model():
    return VanillaForConditionalGeneration(VanillaConfig(**WIDE, attention_bias=True))


def assert_uniform(weight, limit):
    """Drawn evenly from -limit to limit: bounds, mean and spread of some 10,000 draws."""
    deviations = math.sqrt(weight.numel())
    assert weight.abs().max() <= limit
    assert weight.abs().max() > 0.99 * limit
    # five standard errors of the mean, and of the spread (a uniform's is at most its own size)
    assert abs(weight.mean()) < 5 * limit / math.sqrt(3) / deviations
    assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=5 / deviations)


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_queries_keys_and_values_start_in_the_range_of_one_fused_matrix(wide_model, name):
    attentions = [m for m in wide_model.modules() if isinstance(m, VanillaAttention)]
    assert len(attentions) == 3
    for attention in attentions:
        # tensor2tensor draws one d x 3d matrix: Glorot's sqrt(6 / (d + 3d))
        assert_uniform(getattr(attention, name).weight, math.sqrt(6 / (4 * 128)))


@pytest.mark.parametrize("name", ["out_proj", "fc1", "fc2"])
def test_the_other_matrices_start_as_glorot_says(wide_model, name):
    found = [m for path, m in wide_model.named_modules() if path.endswith("." + name)]
    assert len(found) == (3 if name == "out_proj" else 2)
    for linear in found:
        assert_uniform(linear.weight, math.sqrt(6 / (linear.in_features + linear.out_features)))


def test_an_output_of_its_own_starts_as_glorot_says_too():
    model = VanillaForConditionalGeneration(VanillaConfig(**WIDE, tie_word_embeddings=False))
    assert_uniform(model.lm_head.weight, math.sqrt(6 / (128 + 997)))


def test_no_kind_of_tensor_starts_in_a_way_that_is_not_tested_here():
    options = {"attention_bias": True, "lm_head_bias": True, "tie_word_embeddings": False}
    kinds = set()
    for positions in ("sinusoidal", "learned"):
        model = model_with(vocab_size=43, position_embedding_type=positions, **options)
        kinds |= {".".join(name.split(".")[-2:]) for name, _ in model.named_parameters()}
    projections = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "lm_head")
    norms = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
    assert kinds == {
        *(f"{name}.{part}" for name in projections + norms for part in ("weight", "bias")),
        *("shared.weight", "embed_positions.weight"),
    }


def test_biases_start_at_zero_and_norms_at_one(wide_model):
    for module in wide_model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            assert (module.bias == 0).all()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_embeddings_start_normal_with_unit_length_and_padding_at_zero(side, is_shared):
    own = {} if is_shared else {**OWN_TABLES, "vocab_size": 997, "decoder_vocab_size": 991}
    model = VanillaForConditionalGeneration(VanillaConfig(**{**WIDE, **own}))
    weight = getattr(model.model, side).embed_tokens.weight.detach()
    assert (weight[0] == 0).all()
    real = weight[1:]
    five_errors = 5 / math.sqrt(real.numel())
    assert real.std().item() == pytest.approx(128**-0.5, rel=five_errors)
    assert abs(real.mean()) < five_errors * 128**-0.5
    # a normal has 4.55 % beyond two deviations, a uniform none
    beyond = (real.abs() > 2 * 128**-0.5).float().mean()
    assert beyond.item() == pytest.approx(0.0455, abs=0.005)


def test_learned_positions_start_like_embeddings_with_no_row_at_zero():
    model = VanillaForConditionalGeneration(
        VanillaConfig(**WIDE, position_embedding_type="learned")
    )
    weight = model.model.encoder.embed_positions.weight.detach()
    assert weight.std().item() == pytest.approx(128**-0.5, rel=5 / math.sqrt(weight.numel()))
    assert weight.norm(dim=-1).min() > 0.5


@EACH_SHARING
@pytest.mark.parametrize("size", [53, 41])
def test_resizing_the_vocabulary_keeps_the_model_whole(tmp_path, sharing, size):
    model = model_with(**SHARINGS[sharing])
    arguments = batch()
    before = model(**arguments).logits
    model.resize_token_embeddings(size)
    source, target, output = tables(model)
    is_shared = sharing in ("one table", "output apart")
    target_size = size if is_shared else 37
    assert source.weight.shape == (size, 12)
    assert target.weight.shape == output.weight.shape == (target_size, 12)
    assert (target.weight is output.weight) == (sharing in ("one table", "source apart"))
    assert (source.weight is target.weight) == is_shared
    assert (source.num_embeddings, output.out_features) == (size, target_size)
    assert (model.config.vocab_size, model.config.target_vocab_size) == (size, target_size)
    after = model(**arguments).logits
    assert after.shape == (B, T, target_size)
    common = min(before.shape[-1], target_size)
    assert torch.equal(after[..., :common], before[..., :common])
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(**arguments).logits, after)


@EACH_SHARING
def test_a_bias_of_the_output_is_added_saved_and_resized(tmp_path, sharing):
    model = model_with(**SHARINGS[sharing], lm_head_bias=True)
    arguments = batch()
    plain = model(**arguments).logits
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.arange(float(len(model.lm_head.bias))))
    assert_close(model(**arguments).logits, plain + model.lm_head.bias)
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.bias, model.lm_head.bias)
    loaded.resize_token_embeddings(41)
    size = 41 if loaded.config.share_encoder_decoder_embeddings else 37
    assert loaded.lm_head.bias.tolist() == list(range(size))
    assert torch.equal(loaded(**arguments).logits, model(**arguments).logits[..., :size])


@pytest.mark.parametrize("sharing", ["source apart", "three tables"])
@pytest.mark.parametrize("size", [53, 31])
def test_the_target_vocabulary_is_resized_apart_and_back(tmp_path, sharing, size):
    model = model_with(**SHARINGS[sharing], lm_head_bias=True)
    arguments = batch()
    before = model(**arguments).logits
    assert model.resize_decoder_token_embeddings(size).weight.shape == (size, 12)
    source, target, output = tables(model)
    assert source.weight.shape == (43, 12)
    assert target.weight.shape == output.weight.shape == (size, 12)
    assert (target.weight is output.weight) == (sharing == "source apart")
    assert (model.config.vocab_size, model.config.target_vocab_size) == (43, size)
    common = min(size, 37)
    assert torch.equal(model(**arguments).logits[..., :common], before[..., :common])
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    loaded.resize_decoder_token_embeddings(37)
    assert torch.equal(loaded(**arguments).logits[..., :common], before[..., :common])


def test_one_table_has_no_target_vocabulary_of_its_own():
    with pytest.raises(ValueError, match="call resize_token_embeddings"):
        model_with(vocab_size=43).resize_decoder_token_embeddings(53)


def test_padding_is_still_looked_up_as_zeros_after_resizing():
    model = model_with(vocab_size=43)
    model.resize_token_embeddings(53)
    with torch.no_grad():
        model.model.shared.weight.fill_(1.0)
    vectors = model.model.decoder.embed_tokens(torch.tensor([[0, 52]]))
    assert vectors.abs().amax(dim=-1).tolist() == [[0, 1]]


def test_a_table_can_be_replaced_for_both_sides_at_once():
    model = model_with(vocab_size=43)
    table = nn.Embedding(43, 12)
    model.set_input_embeddings(table)
    assert all(found.weight is table.weight for found in tables(model)[:2])
    assert model.get_input_embeddings() is table


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_model_loads_in_half_precision(tmp_path, dtype):
    model = model_with(vocab_size=43)
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    arguments = batch()
    logits = loaded(**arguments).logits
    assert logits.dtype == dtype
    # eight bits of mantissa, through three layers of states near 1
    assert_close(logits.float(), model(**arguments).logits, rtol=0, atol=0.2)
