"""Smoothed cross-entropy (5.4): worked numbers, and one divisor for any cut of a batch."""

import pytest
import torch
from reference import smoothed_target
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from hf_vanilla.models import kernels_vanilla as kernels
from hf_vanilla.models.loss_vanilla import label_smoothed_loss

# worked out by hand: five words, the third is true, a tenth of its probability goes elsewhere
WORKED_LOGITS = torch.tensor([[[0.5, -1.0, 2.0, 0.0, 1.0]]])
WORKED_LABEL = torch.tensor([[2]])
WORKED_LOSSES = {"non_target": 0.761938, "uniform": 0.724438, "non_target_non_pad": 0.774438}
SIX_DECIMALS = {"rtol": 0, "atol": 6e-7}  # rounded to six places, computed in float32
FORMS = pytest.mark.parametrize("form", WORKED_LOSSES)
B, T, V = 3, 5, 11


def batch():
    logits = torch.randn(B, T, V, requires_grad=True)
    labels = torch.randint(1, V, (B, T))
    labels[0, 3:] = labels[2, 1:] = -100
    return logits, labels


@FORMS
def test_each_form_gives_the_number_worked_out_by_hand(form):
    loss = label_smoothed_loss(
        WORKED_LOGITS, WORKED_LABEL, smoothing=0.1, smoothing_type=form, pad_token_id=0
    )
    assert_close(loss.item(), WORKED_LOSSES[form], **SIX_DECIMALS)


@FORMS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_a_compiler_gets_is_the_same_loss(form, smoothing, monkeypatch):
    logits, labels = batch()
    options = {"smoothing": smoothing, "smoothing_type": form, "pad_token_id": 0}
    found = []
    for is_compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda is_on=is_compiling: is_on)
        loss = label_smoothed_loss(logits, labels, **options)
        found.append((loss.detach(), *torch.autograd.grad(loss, logits)))
    assert_close(found[1], found[0])


@FORMS
def test_without_smoothing_each_form_is_the_plain_negative_log_likelihood(form):
    loss = label_smoothed_loss(
        WORKED_LOGITS, WORKED_LABEL, smoothing=0, smoothing_type=form, pad_token_id=0
    )
    assert_close(loss.item(), 0.574438, **SIX_DECIMALS)


def test_the_default_form_less_the_entropy_of_its_target_is_tensor2tensors_number():
    loss = label_smoothed_loss(WORKED_LOGITS, WORKED_LABEL, smoothing=0.1)
    target = torch.tensor([0.025, 0.025, 0.9, 0.025, 0.025])
    entropy = -(target * target.log()).sum()
    assert_close((loss - entropy).item(), 0.298226, rtol=0, atol=1e-6)  # two rounded numbers


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_uniform_form_is_torchs(smoothing):
    logits, labels = batch()
    theirs = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    ours = label_smoothed_loss(logits, labels, smoothing=smoothing, smoothing_type="uniform")
    assert_close(ours, theirs)
    gradient, expected = (torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs))
    assert_close(gradient, expected)


def test_the_default_form_is_the_uniform_one_with_a_little_more_smoothing():
    logits, labels = batch()
    ours = label_smoothed_loss(logits, labels, smoothing=0.1)
    uniform = label_smoothed_loss(
        logits, labels, smoothing=0.1 * V / (V - 1), smoothing_type="uniform"
    )
    assert_close(ours, uniform)


@FORMS
@pytest.mark.parametrize("cached", [1, 2 * V, 2**19], ids=["by row", "by two rows", "at once"])
def test_the_gradient_is_the_likelihood_found_less_the_one_wanted(form, cached, monkeypatch):
    monkeypatch.setattr("hf_vanilla.models.kernels_vanilla.BLOCK_LOGITS", cached)
    logits, labels = batch()
    logits = logits.detach().double().requires_grad_()
    expected, total = torch.zeros(B, T, V, dtype=torch.float64), 0
    for row, place in (labels != -100).nonzero().tolist():
        wanted = smoothed_target(labels[row, place].item(), V, smoothing=0.3, kind=form, pad=0)
        assert wanted.sum().item() == pytest.approx(1)
        found = logits[row, place].detach().softmax(dim=-1)
        total -= (wanted * found.log()).sum() / 9  # nine real words
        expected[row, place] = (found - wanted) / 9
    loss = label_smoothed_loss(logits, labels, smoothing=0.3, smoothing_type=form, pad_token_id=0)
    assert_close(loss, total)
    loss.backward()
    assert_close(logits.grad, expected)


@FORMS
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.bfloat16, 0.005)])
def test_the_gradient_in_passes_is_that_in_blocks(form, dtype, error, monkeypatch):
    (drawn, labels), found = batch(), []
    for write in (kernels._write_gradient, kernels._write_gradient_in_passes):
        monkeypatch.setattr(kernels, "_write_gradient", write)
        logits = drawn.detach().to(dtype).requires_grad_()
        arguments = {"smoothing": 0.3, "smoothing_type": form, "pad_token_id": 0}
        label_smoothed_loss(logits, labels, **arguments).backward()
        found.append(logits.grad)
    blocks, passes = found
    assert blocks.norm() > 0
    assert (passes - blocks).norm() <= error * blocks.norm()


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_loss_is_the_same_whether_or_not_a_gradient_is_wanted(form, dtype):
    logits, labels = batch()
    arguments = {"smoothing": 0.1, "smoothing_type": form, "pad_token_id": 0}
    wanted = logits.detach().to(dtype).requires_grad_()
    unwanted = wanted.detach()
    loss = label_smoothed_loss(wanted, labels, **arguments)
    assert_close(loss, label_smoothed_loss(unwanted, labels, **arguments))
    loss.backward()
    exact = unwanted.double().requires_grad_()
    label_smoothed_loss(exact, labels, **arguments).backward()
    # the gradient is rounded once, to the precision of its logits
    assert_close(wanted.grad, exact.grad.to(dtype))
    assert torch.equal(wanted, unwanted)  # the logits themselves are left alone


@FORMS
def test_ignored_positions_change_no_loss_and_have_no_gradient(form):
    logits, labels = batch()
    arguments = {"smoothing": 0.1, "smoothing_type": form, "pad_token_id": 0}
    loss = label_smoothed_loss(logits, labels, **arguments)
    (gradient,) = torch.autograd.grad(loss, logits)
    ignored = labels == -100
    assert gradient[ignored].abs().max() == 0
    assert gradient[~ignored].abs().sum(dim=-1).min() > 0
    changed = torch.where(ignored.unsqueeze(-1), torch.randn_like(logits), logits)
    assert torch.equal(label_smoothed_loss(changed, labels, **arguments), loss)


def test_the_loss_is_a_mean_over_the_real_tokens():
    logits, labels = batch()
    log_probs = logits.log_softmax(dim=-1)
    chosen = [
        -log_probs[row, place, labels[row, place]]
        for row in range(B)
        for place in range(T)
        if labels[row, place] != -100
    ]
    assert len(chosen) == 3 + 5 + 1
    assert_close(label_smoothed_loss(logits, labels, smoothing=0.0), sum(chosen) / 9)


@FORMS
def test_a_batch_without_a_real_token_has_zero_loss_and_zero_gradient(form):
    logits, labels = batch()
    labels = torch.full_like(labels, -100)
    loss = label_smoothed_loss(logits, labels, smoothing=0.1, smoothing_type=form, pad_token_id=0)
    assert loss.item() == 0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient, torch.zeros_like(logits))


@FORMS
def test_eight_sentences_at_once_have_the_gradient_of_four_times_two(form):
    lengths = (2, 11, 3, 5, 7, 1, 13, 4)
    logits = torch.randn(8, 13, V)
    labels = torch.randint(1, V, (8, 13))
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    arguments = {"smoothing": 0.1, "smoothing_type": form, "pad_token_id": 0}

    whole = logits.clone().requires_grad_()
    label_smoothed_loss(whole, labels, **arguments).backward()
    in_parts = logits.clone().requires_grad_()
    for first in range(0, 8, 2):
        rows = slice(first, first + 2)
        arguments["num_items_in_batch"] = sum(lengths)
        label_smoothed_loss(in_parts[rows], labels[rows], **arguments).backward()
    # one float32 division by the same number in both
    assert_close(in_parts.grad, whole.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("count", [7, torch.tensor(7)], ids=["int", "tensor"])
def test_the_number_of_tokens_may_be_a_tensor(count):
    logits, labels = batch()  # nine real words
    loss = label_smoothed_loss(logits, labels, smoothing=0.0, num_items_in_batch=count)
    assert_close(7 * loss, 9 * label_smoothed_loss(logits, labels, smoothing=0.0))


def test_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(1, 3, 997).to(torch.bfloat16).requires_grad_()
    labels = torch.tensor([[5, 7, 11]])
    loss = label_smoothed_loss(logits, labels, smoothing=0.1)
    exact = label_smoothed_loss(logits.double(), labels, smoothing=0.1)
    assert loss.dtype == torch.float32
    assert_close(loss.double(), exact, rtol=0, atol=1e-5)  # bfloat16 would be wrong by 1e-2
    loss.backward()
    assert logits.grad.dtype == torch.bfloat16


def test_double_precision_logits_stay_in_double_precision():
    loss = label_smoothed_loss(WORKED_LOGITS.double(), WORKED_LABEL, smoothing=0.1)
    assert loss.dtype == torch.float64


def test_an_unknown_form_is_refused_with_the_known_ones():
    message = r"label_smoothing_type='flat': choose one of non_target, uniform, non_target_non_pad"
    with pytest.raises(ValueError, match=message):
        label_smoothed_loss(WORKED_LOGITS, WORKED_LABEL, smoothing=0.1, smoothing_type="flat")


def test_the_form_without_padding_needs_a_pad_token_id():
    with pytest.raises(ValueError, match="'non_target_non_pad' needs a pad_token_id"):
        label_smoothed_loss(
            WORKED_LOGITS, WORKED_LABEL, smoothing=0.1, smoothing_type="non_target_non_pad"
        )


@FORMS
def test_the_loss_has_the_same_gradient_under_torch_func(form):
    logits, labels = batch()
    arguments = {"smoothing": 0.1, "smoothing_type": form, "pad_token_id": 0}
    (expected,) = torch.autograd.grad(label_smoothed_loss(logits, labels, **arguments), logits)
    found = torch.func.grad(lambda states: label_smoothed_loss(states, labels, **arguments))(
        logits.detach()
    )
    assert_close(found, expected)


def test_the_loss_of_each_row_has_its_gradient_under_vmap():
    logits, labels = batch()
    each = torch.func.grad(
        lambda row, ids: label_smoothed_loss(row[None], ids[None], smoothing=0.1)
    )
    found = torch.func.vmap(each)(logits.detach(), labels)
    for row in range(B):
        assert_close(found[row], each(logits[row].detach(), labels[row]))


@FORMS
def test_the_loss_has_a_second_derivative(form):
    logits, labels = batch()
    logits = logits.detach().double().requires_grad_()
    arguments = {"smoothing": 0.3, "smoothing_type": form, "pad_token_id": 0}

    def loss(states):
        return label_smoothed_loss(states, labels, **arguments)

    assert torch.autograd.gradgradcheck(loss, logits)
