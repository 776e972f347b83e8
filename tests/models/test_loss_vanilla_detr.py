"""Boxes, matching and set loss of DETR: by hand, and equal to transformers' own."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from transformers.image_transforms import center_to_corners_format
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss, generalized_box_iou

from hf_vanilla.models.loss_vanilla_detr import (
    Targets,
    detection_loss,
    generalized_iou,
    iou,
    match,
    matching_cost,
    padded_targets,
)

LAYERS, IMAGES, QUERIES, CLASSES = 3, 4, 11, 7


class TheirConfig:
    """What our loss and transformers' read of a config."""

    class_cost, bbox_cost, giou_cost = 1, 5, 2
    bbox_loss_coefficient, giou_loss_coefficient, eos_coefficient = 5, 2, 0.1
    decoder_layers, num_labels, auxiliary_loss = LAYERS, CLASSES, True


def random_boxes(*shape):
    return torch.cat((torch.rand(*shape, 2), 0.05 + 0.4 * torch.rand(*shape, 2)), dim=-1)


def predictions():
    logits = torch.randn(LAYERS, IMAGES, QUERIES, CLASSES + 1, requires_grad=True)
    boxes = random_boxes(LAYERS, IMAGES, QUERIES).requires_grad_()
    return logits, boxes


def targets(counts=(3, 0, 5, 1)):
    return [
        {"class_labels": torch.randint(CLASSES, (count,)), "boxes": random_boxes(count)}
        for count in counts
    ]


def rows_of(targets, rows):
    return Targets(targets.labels[rows], targets.boxes[rows])


# --- boxes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "overlap", "generalized"),
    [
        ([0, 0, 2, 2], 1.0, 1.0),  # equal
        ([1, 1, 3, 3], 1 / 7, 1 / 7 - 2 / 9),  # hull 9, union 7
        ([0, 0, 1, 1], 0.25, 0.25),  # nested: the hull is the union
        ([3, 0, 4, 2], 0.0, -2 / 8),  # disjoint: hull 8, union 6
        ([2, 0, 4, 2], 0.0, 0.0),  # they touch
    ],
)
def test_overlap_by_hand(other, overlap, generalized):
    box, other = torch.tensor([0.0, 0, 2, 2]), torch.tensor(other, dtype=torch.float)
    assert iou(box, other).item() == pytest.approx(overlap, abs=1e-7)
    assert generalized_iou(box, other).item() == pytest.approx(generalized, abs=1e-7)


def test_boxes_without_area_have_finite_overlap_and_gradient():
    point = torch.tensor([1.0, 1, 1, 1], requires_grad=True)
    value = generalized_iou(point, point.detach().clone())
    value.backward()
    assert value.item() == 0
    assert point.grad.isfinite().all()


def test_generalized_iou_of_all_pairs_equals_transformers():
    ours, theirs = (
        center_to_corners_format(random_boxes(5)),
        center_to_corners_format(random_boxes(7)),
    )
    found = generalized_iou(ours[:, None], theirs[None])
    assert_close(found, generalized_box_iou(ours, theirs), rtol=0, atol=0)


# --- matching ----------------------------------------------------------------------------------


def test_matching_is_the_cheapest_of_all_assignments():
    logits, boxes = (t.detach()[:1, :1, :4] for t in predictions())
    wanted = padded_targets(targets((3,)))
    cost = matching_cost(TheirConfig, logits, boxes, wanted)[0, 0]
    orders = list(itertools.permutations(range(4), 3))
    cheapest = min(orders, key=lambda rows: sum(cost[q, m].item() for m, q in enumerate(rows)))
    assert match(TheirConfig, logits, boxes, wanted)[0, 0].tolist() == list(cheapest)


def costs(label, distance, overlap):
    return SimpleNamespace(class_cost=label, bbox_cost=distance, giou_cost=overlap)


def test_each_cost_alone_finds_its_own_best_query():
    logits = torch.zeros(1, 1, 3, 3)
    logits[0, 0, 0, 1] = 5.0  # query 0 is sure of class 1
    boxes = torch.tensor([[[[0.9, 0.9, 0.1, 0.1], [0.5, 0.5, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9]]]])
    wanted = Targets(torch.tensor([[1]]), torch.tensor([[[0.5, 0.5, 0.3, 0.3]]]))
    by_label = match(costs(1, 0, 0), logits, boxes, wanted)
    by_distance = match(costs(0, 1, 0), logits, boxes, wanted)
    by_overlap = match(costs(0, 0, 1), logits, boxes, wanted)
    assert [t.item() for t in (by_label, by_distance, by_overlap)] == [0, 1, 1]


def test_no_query_gets_two_objects_and_padding_gets_none():
    logits, boxes = predictions()
    wanted = padded_targets(targets())
    chosen = match(TheirConfig, logits, boxes, wanted)
    assert (chosen.ge(0) == wanted.labels.ne(-100)).all()
    for of_image in chosen.flatten(0, 1):
        queries = of_image[of_image >= 0].tolist()
        assert len(queries) == len(set(queries))


def test_more_objects_than_queries_is_an_error():
    logits, boxes = predictions()
    wanted = padded_targets(targets((12, 0, 1, 0)))
    with pytest.raises(ValueError, match=r"12 objects, but the model has 11 queries.*num_queries"):
        match(TheirConfig, logits, boxes, wanted)


def test_predictions_that_are_not_finite_are_matched_last():
    logits, boxes = (t.detach() for t in predictions())
    boxes[:, :, 0] = float("nan")
    wanted = padded_targets(targets())
    assert not match(TheirConfig, logits, boxes, wanted).eq(0).any()


# --- loss --------------------------------------------------------------------------------------


def test_loss_and_gradients_equal_transformers():
    logits, boxes = predictions()
    wanted = targets()
    total, found = detection_loss(TheirConfig, logits, boxes, padded_targets(wanted))
    total.backward()
    ours = [t.grad.clone() for t in (logits, boxes)]
    logits.grad = boxes.grad = None
    expected, parts, _ = ForObjectDetectionLoss(
        logits[-1], wanted, logits.device, boxes[-1], TheirConfig, logits, boxes
    )
    expected.backward()
    assert_close(total, expected, rtol=0, atol=1e-5)
    assert set(found) == {"loss_ce", "loss_bbox", "loss_giou"}
    for name, part in found.items():
        per_layer = [parts[f"{name}_{n}"] for n in range(LAYERS - 1)] + [parts[name]]
        assert_close(part, torch.stack([p.squeeze() for p in per_layer]), rtol=0, atol=1e-6)
    assert_close(ours[0], logits.grad, rtol=0, atol=1e-6)
    assert_close(ours[1], boxes.grad, rtol=0, atol=1e-6)


def test_the_order_of_targets_is_irrelevant():
    logits, boxes = predictions()
    wanted = targets()
    turned = [{name: tensor.flip(0) for name, tensor in target.items()} for target in wanted]
    first, second = (
        detection_loss(TheirConfig, logits, boxes, padded_targets(t))[0] for t in (wanted, turned)
    )
    assert_close(first, second)


@pytest.mark.parametrize("width", [0, 2])
def test_a_batch_without_objects_has_a_finite_loss_of_classes_only(width):
    logits, boxes = predictions()
    labels = torch.full((IMAGES, width), -100)
    total, found = detection_loss(
        TheirConfig, logits, boxes, Targets(labels, torch.zeros(IMAGES, width, 4))
    )
    nothing = logits.detach().log_softmax(-1)[..., -1]
    assert_close(found["loss_ce"].detach(), -nothing.mean(dim=(1, 2)))
    assert found["loss_bbox"].abs().sum() == found["loss_giou"].abs().sum() == 0
    total.backward()
    assert logits.grad.isfinite().all()


def test_a_batch_without_objects_of_a_loss_that_counts_only_objects_is_zero():
    class OnlyObjects(TheirConfig):
        eos_coefficient = 0

    logits, boxes = predictions()
    nothing = Targets(torch.full((IMAGES, 0), -100), torch.zeros(IMAGES, 0, 4))
    total, _ = detection_loss(OnlyObjects, logits, boxes, nothing)
    total.backward()
    assert total == logits.grad.abs().sum() == 0


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_micro_batches_with_the_counts_of_the_step_sum_to_the_whole_loss(cut):
    logits, boxes = predictions()
    wanted = padded_targets(targets())
    whole, _ = detection_loss(TheirConfig, logits, boxes, wanted)
    step = {"num_objects": wanted.labels.ne(-100).sum(), "num_images": IMAGES}
    parts = [
        detection_loss(TheirConfig, logits[:, rows], boxes[:, rows], rows_of(wanted, rows), **step)[
            0
        ]
        for rows in (slice(None, cut), slice(cut, None))
    ]
    assert_close(sum(parts), whole)


def test_one_count_of_the_step_without_the_other_is_refused():
    logits, boxes = predictions()
    for counts in ({"num_objects": 9}, {"num_images": 3}):
        with pytest.raises(ValueError, match="give both of the optimizer step, or neither"):
            detection_loss(TheirConfig, logits, boxes, padded_targets(targets()), **counts)


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_is_named(label):
    logits, boxes = predictions()
    wanted = padded_targets(targets())
    wanted.labels[0, 0] = label
    with pytest.raises(ValueError, match=f"labels from .*{label}.*classes 0 to {CLASSES - 1}"):
        detection_loss(TheirConfig, logits, boxes, wanted)


@pytest.mark.parametrize("number", [312.0, torch.nan])
def test_boxes_that_are_no_shares_of_the_image_are_named(number):
    logits, boxes = predictions()
    wanted = padded_targets(targets())
    wanted.boxes[0, 0, 2] = number
    with pytest.raises(ValueError, match=f"boxes with numbers up to {number:g}: .* from 0 to 1"):
        detection_loss(TheirConfig, logits, boxes, wanted)


def test_boxes_and_labels_of_different_number_are_named():
    wanted = targets()
    wanted[2]["boxes"] = wanted[2]["boxes"][:2]
    with pytest.raises(ValueError, match="image 2 of the batch has 5 class_labels and 2 boxes"):
        padded_targets(wanted)
