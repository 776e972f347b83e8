"""Where a token stands: the sinusoids of 3.5 to the last digit, and learned positions."""

import pytest
import torch
from reference import position_vector
from torch.testing import assert_close
from transformers.models.detr.modeling_detr import DetrSinePositionEmbedding

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.models.positions_vanilla import (
    LearnedPositions,
    SinusoidalPositions,
    sinusoid,
    sinusoid_2d,
)

# worked out by hand for d_model = 512: place, first channel of the pair, sine, cosine
PAPER_NUMBERS = [
    (1, 0, 0.841471, 0.540302),
    (1, 2, 0.821856, 0.569695),
    (10, 2, -0.220023, -0.975495),
    (100, 256, 0.841471, 0.540302),
]
TENSOR2TENSOR_NUMBERS = [(1, 2, 0.821779, 0.569807), (10, 2, -0.218695, -0.975793)]
SIX_DECIMALS = {"rtol": 0, "atol": 5e-7}  # the numbers above are rounded to six places


def model_with(**changes):
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 13, "decoder_ffn_dim": 13}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = VanillaConfig(**{"vocab_size": 19, "d_model": 6, **sizes, **heads, **changes})
    return VanillaForConditionalGeneration(config).eval()


@pytest.mark.parametrize(("place", "channel", "sine", "cosine"), PAPER_NUMBERS)
def test_the_papers_frequencies_give_the_numbers_worked_out_by_hand(place, channel, sine, cosine):
    pair = sinusoid(torch.tensor(place), 512)[channel : channel + 2]
    assert_close(pair.tolist(), [sine, cosine], **SIX_DECIMALS)


@pytest.mark.parametrize(("place", "channel", "sine", "cosine"), TENSOR2TENSOR_NUMBERS)
def test_tensor2tensors_frequencies_differ_as_worked_out_by_hand(place, channel, sine, cosine):
    pair = sinusoid(torch.tensor(place), 512, frequencies="tensor2tensor")[channel : channel + 2]
    assert_close(pair.tolist(), [sine, cosine], **SIX_DECIMALS)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize("frequencies", ["paper", "tensor2tensor"])
def test_every_channel_equals_the_formula_written_number_by_number(layout, frequencies):
    table = sinusoid(torch.arange(23), 10, layout=layout, frequencies=frequencies)
    by_hand = [
        position_vector(place, 10, layout=layout, frequencies=frequencies) for place in range(23)
    ]
    # both in double precision; an angle below 23 loses a digit or two of sixteen
    assert_close(table, torch.stack(by_hand), rtol=0, atol=1e-13)


def test_the_first_position_is_zeros_and_ones_in_turn():
    assert sinusoid(torch.tensor(0), 6).tolist() == [0, 1, 0, 1, 0, 1]


def test_the_concatenated_layout_holds_the_same_channels_in_another_order():
    places = torch.arange(7)
    interleaved = sinusoid(places, 10)
    concatenated = sinusoid(places, 10, layout="concatenated")
    order = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert torch.equal(concatenated, interleaved[:, order])
    assert not torch.equal(concatenated, interleaved)


def test_a_position_may_be_a_fraction_and_have_any_shape():
    places = torch.tensor([[0.5, 1.25, -2.0], [3.0, 0.0, 7.75]])
    table = sinusoid(places, 4)
    assert table.shape == (2, 3, 4)
    for row in range(2):
        for column in range(3):
            by_hand = position_vector(places[row, column].item(), 4)
            assert_close(table[row, column], by_hand, rtol=0, atol=1e-14)  # double precision


def test_the_base_sets_the_longest_wavelength():
    # width 4 and base 100: the second pair turns with 100^(-1/2) = 1/10
    last_pair = sinusoid(torch.tensor(10.0), 4, base=100.0)[2:]
    assert_close(last_pair.tolist(), [0.841471, 0.540302], **SIX_DECIMALS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 7}, r"width=7: .*give an even width"),
        ({"width": 0}, r"width=0: .*give an even width"),
        ({"layout": "mixed"}, r"layout='mixed': choose one of interleaved, concatenated"),
        ({"frequencies": "t2t"}, r"frequencies='t2t': choose one of paper, tensor2tensor"),
    ],
)
def test_what_has_no_sinusoid_is_refused_with_a_remedy(changes, message):
    width = changes.pop("width", 8)
    with pytest.raises(ValueError, match=message):
        sinusoid(torch.arange(3), width, **changes)


def test_the_offset_shifts_every_position():
    like = torch.zeros(1)
    plain = SinusoidalPositions(VanillaConfig(d_model=16))
    moved = SinusoidalPositions(VanillaConfig(d_model=16, position_offset=2))
    assert torch.equal(moved(5, 0, like), plain(5, 2, like))
    assert torch.equal(moved(5, 0, like), plain(7, 0, like)[2:])


def test_the_model_adds_the_offset_layout_and_frequencies_of_its_config():
    settings = {
        "position_offset": 3,
        "position_layout": "concatenated",
        "position_frequencies": "tensor2tensor",
    }
    stack = model_with(**settings).model.encoder
    embedded = stack.embed(None, torch.zeros(1, 4, 6), None)
    by_hand = [
        position_vector(place, 6, layout="concatenated", frequencies="tensor2tensor")
        for place in (3, 4, 5, 6)
    ]
    assert torch.equal(embedded[0], torch.stack(by_hand).float())


def test_half_precision_rounds_the_exact_table_and_never_computes_in_it():
    positions = SinusoidalPositions(VanillaConfig(d_model=16)).to(torch.bfloat16)
    exact = torch.stack([position_vector(place, 16) for place in range(4001, 4008)])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        table = positions(7, 4001, torch.zeros(1, dtype=dtype))
        assert torch.equal(table, exact.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_trip_into_half_precision_leaves_no_trace_in_the_positions(dtype):
    model = model_with()
    before = model.model.encoder.embed(None, torch.zeros(1, 5, 6), None)
    model = model.to(dtype).float()
    assert torch.equal(model.model.encoder.embed(None, torch.zeros(1, 5, 6), None), before)


def test_sinusoids_have_no_longest_sentence():
    ids = torch.arange(1, 12).unsqueeze(0)
    short, long = (model_with(max_position_embeddings=size) for size in (7, 1024))
    long.load_state_dict(short.state_dict())
    logits = [model(input_ids=ids, decoder_input_ids=ids).logits for model in (short, long)]
    assert torch.equal(logits[0], logits[1])


def test_positions_come_back_from_disk_as_they_were(tmp_path):
    model = model_with()
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    for stack, its_copy in (
        (model.model.encoder, loaded.model.encoder),
        (model.model.decoder, loaded.model.decoder),
    ):
        zeros = torch.zeros(1, 11, 6)
        assert torch.equal(stack.embed(None, zeros, None), its_copy.embed(None, zeros, None))
    assert not any("position" in name for name in loaded.state_dict())


def test_learned_positions_are_looked_up_by_index():
    positions = LearnedPositions(VanillaConfig(d_model=16, max_position_embeddings=11))
    assert torch.equal(positions(3, 5, torch.zeros(1)), positions.weight[5:8])
    assert torch.equal(positions(11, 0, torch.zeros(1)), positions.weight)


def test_learned_positions_are_trained_and_saved_for_each_side(tmp_path):
    model = model_with(position_embedding_type="learned", max_position_embeddings=11).train()
    ids = torch.tensor([[4, 5, 6]])
    model(input_ids=ids, labels=ids).loss.backward()
    for stack in (model.model.encoder, model.model.decoder):
        moved = stack.embed_positions.weight.grad.abs().sum(dim=-1) > 0
        assert moved.tolist() == [True] * 3 + [False] * 8
    model.save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path).model
    for side in ("encoder", "decoder"):
        saved = getattr(model.model, side).embed_positions.weight
        assert torch.equal(getattr(loaded, side).embed_positions.weight, saved)
    assert not torch.equal(
        loaded.encoder.embed_positions.weight, loaded.decoder.embed_positions.weight
    )


@pytest.mark.parametrize(("source_length", "target_length"), [(8, 3), (3, 8)])
def test_learned_positions_say_where_they_end_and_what_to_do(source_length, target_length):
    model = model_with(position_embedding_type="learned", max_position_embeddings=7)
    message = r"8 tokens.*max_position_embeddings=7: shorten it or train with more"
    with pytest.raises(ValueError, match=message):
        model(
            input_ids=torch.full((2, source_length), 5),
            decoder_input_ids=torch.full((2, target_length), 6),
        )


def test_learned_positions_end_at_the_same_position_with_a_cache():
    model = model_with(position_embedding_type="learned", max_position_embeddings=7)
    ids = torch.full((1, 7), 5)
    so_far = model(input_ids=ids, decoder_input_ids=ids, use_cache=True)
    with pytest.raises(ValueError, match="8 tokens"):
        model(
            input_ids=ids,
            decoder_input_ids=ids[:, :1],
            past_key_values=so_far.past_key_values,
        )


def test_positions_of_an_image_equal_detrs():
    is_real = torch.zeros(2, 5, 7, dtype=torch.bool)
    is_real[0, :3, :6] = is_real[1] = True
    theirs = DetrSinePositionEmbedding(num_position_features=6, normalize=True)
    expected = theirs(torch.Size((2, 12, 5, 7)), torch.device("cpu"), torch.float64, is_real)
    if expected.dim() == 4:
        expected = expected.flatten(2).transpose(1, 2)
    found = sinusoid_2d(is_real, 12)
    assert found.shape == (2, 35, 12)
    # ours counts in float32, which has seven digits of 2 pi
    assert_close(found, expected, rtol=0, atol=2e-6)


def test_positions_of_an_image_have_the_row_first_and_ignore_padding():
    is_real = torch.ones(1, 2, 3, dtype=torch.bool)
    padded = torch.zeros(1, 4, 5, dtype=torch.bool)
    padded[:, :2, :3] = True
    alone = sinusoid_2d(is_real, 8).unflatten(1, (2, 3))
    beside = sinusoid_2d(padded, 8).unflatten(1, (4, 5))
    assert torch.equal(beside[:, :2, :3], alone)
    # the last real row and column are at 2 pi, the first row of two at pi
    assert_close(alone[0, 0, 2, [0, 1, 4, 5]].tolist(), [0.0, -1.0, 0.0, 1.0], rtol=0, atol=1e-5)


def test_positions_of_an_image_without_a_real_pixel_are_finite():
    assert sinusoid_2d(torch.zeros(1, 2, 3, dtype=torch.bool), 4).isfinite().all()


@pytest.mark.parametrize("width", [6, 10])
def test_positions_of_an_image_refuse_a_width_that_is_no_multiple_of_four(width):
    with pytest.raises(ValueError, match=f"width={width}: row and column"):
        sinusoid_2d(torch.ones(1, 2, 3, dtype=torch.bool), width)
