"""Translation as a task: work of a batch by hand, operations as torch counts them."""

import pytest
import small_run
import torch
from accelerate import Accelerator
from torch.utils.flop_counter import FlopCounterMode

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.text.task import TranslationTask, perplexity, prepare, training_flops
from hf_vanilla.training.task import Work

# --- operations --------------------------------------------------------------------------------


def test_the_operations_are_those_that_torch_counts(tiny_config):
    tiny_config.head_dim, tiny_config.v_head_dim = 5, 3
    model = VanillaForConditionalGeneration(tiny_config)
    model.set_attn_implementation("eager")
    sentences, source, target = 2, 7, 10
    with FlopCounterMode(display=False) as counter:
        ids = torch.randint(3, 40, (sentences, source))
        model(input_ids=ids, labels=torch.randint(3, 40, (sentences, target))).loss.backward()
    lengths = torch.tensor([source] * sentences), torch.tensor([target] * sentences)
    # torch counts the masked half of causal attention too, which ours leaves out
    width = tiny_config.decoder_attention_heads * (5 + 3)
    pairs = sentences * (target**2) - (sentences * target**2) // 2
    masked = 6 * tiny_config.decoder_layers * width * pairs
    assert training_flops(tiny_config, *lengths) + masked == counter.get_total_flops()


@pytest.mark.parametrize(
    ("changes", "passes"), [({}, 1), ({"rdrop_alpha": 5.0}, 2), ({"simcut_alpha": 3.0}, 2)]
)
def test_the_work_of_a_micro_batch_by_hand(tiny_config, tmp_path, changes, passes):
    batch = {
        "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "labels": torch.tensor([[5, 6, 7, 8, 1], [5, 1, -100, -100, -100]]),
    }
    flops = passes * training_flops(tiny_config, torch.tensor([3, 1]), torch.tensor([5, 2]))
    recipe = small_run.recipe(tmp_path, {}, **changes)
    task = TranslationTask(recipe=recipe, data=None, rows=None, collate=None)
    assert task.work(tiny_config, batch) == Work(7, 11, 16, flops)


# --- few shapes ----------------------------------------------------------------------------------


@pytest.fixture
def few_shapes(tmp_path):
    """Makes the task of a run in three shapes."""
    Accelerator(cpu=True)  # a run has one before it prepares its task
    budget = {"tokens_per_step": 120, "tokens_per_batch": 60, "max_length": 60}

    def make(files, **changes):
        options = {"length_buckets": 3, **budget, **changes}
        return prepare(small_run.recipe(tmp_path, files, **options))

    return make


def test_batches_in_buckets_have_few_shapes_and_the_loss_of_their_pairs(corpus_files, few_shapes):
    task = few_shapes(corpus_files)
    order, model, shapes = task.order(2), task.model().eval(), set()
    for number in range(len(order)):
        rows = order[number]
        batch = task.batch(rows, torch.Generator())
        pairs = task.collate(task.rows[[row for row in rows if row >= 0]])
        shapes.add(tuple(batch["input_ids"].shape))
        assert batch["labels"].shape == batch["input_ids"].shape
        torch.testing.assert_close(model(**batch).loss, model(**pairs).loss, rtol=1e-4, atol=1e-5)
    assert len(shapes) <= 3 < len(order)


def test_the_batches_of_a_mixture_in_buckets_have_few_shapes_and_pairs_of_one_corpus(
    corpus_files, few_shapes
):
    paths = {"source": corpus_files["train_source"], "target": corpus_files["train_target"]}
    mixture = [{**paths, "tag": "<a>"}, {**paths, "tag": "<b>", "weight": 3.0}]
    task = few_shapes({}, mixture=mixture)
    order, shapes, seen = task.order(2), set(), []
    tags = task.data.tokenizer.convert_tokens_to_ids(["<a>", "<b>"])
    for number in range(200):
        batch = task.batch(order[number], torch.Generator())
        shapes.add(tuple(batch["input_ids"].shape))
        has_labels = (batch["labels"] != -100).any(1)
        (tag,) = batch["input_ids"][has_labels, 0].unique().tolist()
        seen.append(tags.index(tag))
        assert not (~has_labels).any() or (batch["input_ids"][~has_labels] == 0).all()
    assert len(shapes) <= 3
    assert 140 < sum(seen) < 160  # three quarters of them


def test_training_in_bf16_on_a_cpu_is_told_of_buckets(corpus_files, few_shapes, caplog):
    caplog.set_level("INFO")
    for changes in ({"length_buckets": None}, {"mixed_precision": "bf16"}):
        few_shapes(corpus_files, **changes)
    assert "length_buckets" not in caplog.text
    few_shapes(corpus_files, length_buckets=None, mixed_precision="bf16")
    assert "with length_buckets=24 there are few" in caplog.text


def test_buckets_that_cannot_be_are_refused(corpus_files, tmp_path):
    with pytest.raises(ValueError, match="length_buckets=1"):
        small_run.recipe(tmp_path, corpus_files, length_buckets=1)
    with pytest.raises(ValueError, match=r"length_buckets=2 .*leave out bpe_dropout"):
        small_run.recipe(tmp_path, corpus_files, length_buckets=2, bpe_dropout=0.1)
    paths = {"source": corpus_files["train_source"], "target": corpus_files["train_target"]}
    mixture = [{**paths, "typo_noise": 0.1}]
    with pytest.raises(ValueError, match=r"length_buckets=2 .*typo_noise"):
        small_run.recipe(tmp_path, {}, mixture=mixture, length_buckets=2)


# --- perplexity ----------------------------------------------------------------------------------


def test_a_perplexity_beyond_all_floats_is_limited():
    assert perplexity(1e6) == perplexity(700.0)
    assert perplexity(2.0) == pytest.approx(7.389056)
