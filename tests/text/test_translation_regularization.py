"""R-Drop and SimCut by their formulas; interrupted runs; runs without them."""

from itertools import islice
from types import SimpleNamespace

import pytest
import small_run
import torch
from torch.nn.functional import kl_div

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models import kernels_vanilla
from hf_vanilla.text import regularization
from hf_vanilla.text.regularization import divergence, rdrop_outputs, simcut_outputs
from hf_vanilla.training.preparation import prepare_run
from hf_vanilla.training.run import train
from hf_vanilla.training.train_step import training_steps

BOTH = {"rdrop_alpha": 5.0, "bpe_dropout": 0.3}


@pytest.mark.parametrize("reverse", [0.0, 0.5])
def test_the_divergence_is_that_of_torch_over_real_tokens(reverse):
    first, second = torch.randn(2, 3, 5, 7)
    labels = torch.randint(7, (3, 5))
    labels[1, 3:] = -100
    expected = 0.0
    for b, t in (labels >= 0).nonzero().tolist():
        p, q = first[b, t].log_softmax(-1), second[b, t].log_softmax(-1)
        expected += (1 - reverse) * kl_div(q, p, log_target=True, reduction="sum")
        expected += reverse * kl_div(p, q, log_target=True, reduction="sum")
    found = divergence(torch.cat([first, second]), labels, reverse=reverse)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("reverse", [0.0, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
def test_the_gradient_of_the_divergence_is_that_of_autograd(dtype, tolerance, reverse):
    logits = (3 * torch.randn(6, 5, 7, dtype=torch.float64)).to(dtype).requires_grad_()
    labels = torch.randint(7, (3, 5))
    labels[1, 3:] = -100
    log_p, log_q = logits.double().log_softmax(dim=-1).chunk(2)
    terms = ((1 - reverse) * log_p.exp() - reverse * log_q.exp()) * (log_p - log_q)
    (expected,) = torch.autograd.grad(3 * (terms.sum(dim=-1) * (labels >= 0)).sum(), logits)
    (found,) = torch.autograd.grad(3 * divergence(logits, labels, reverse=reverse), logits)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert not found[1, 3:].any()


def test_the_divergence_of_many_tokens_is_the_sum_of_its_blocks(monkeypatch):
    logits, labels = torch.randn(6, 5, 7, requires_grad=True), torch.randint(7, (3, 5))
    monkeypatch.setattr(kernels_vanilla, "BLOCK_LOGITS", 14)  # two tokens
    in_blocks = divergence(logits, labels, reverse=0.5)
    (gradient,) = torch.autograd.grad(in_blocks, logits)
    monkeypatch.setattr(kernels_vanilla, "BLOCK_LOGITS", 10**6)
    at_once = divergence(logits, labels, reverse=0.5)
    torch.testing.assert_close(in_blocks, at_once)
    torch.testing.assert_close(gradient, torch.autograd.grad(at_once, logits)[0])


def test_the_loss_is_the_mean_of_both_passes_and_their_divergence():
    logits = torch.randn(6, 5, 7)  # 3 rows, twice
    labels = torch.randint(7, (3, 5))
    seen = {}

    def model(*, num_items_in_batch, **batch):
        seen.update(batch, items=num_items_in_batch)
        return SimpleNamespace(loss=torch.tensor(2.0), logits=logits)

    tokens = torch.tensor(11)
    outputs = rdrop_outputs(model, {"labels": labels}, tokens, alpha=4.0)
    assert torch.equal(seen["labels"], torch.cat([labels, labels]))
    assert seen["items"] == 22
    nats = divergence(logits, labels, reverse=0.5)
    assert outputs.loss.item() == pytest.approx(2.0 + 2.0 * nats.item() / 11)
    assert torch.equal(outputs.logits, logits[:3])


def test_without_dropout_two_passes_are_one(tiny_config):
    tiny_config.dropout = 0.0
    model = VanillaForConditionalGeneration(tiny_config).train()
    batch = {
        "input_ids": torch.randint(3, 40, (2, 5)),
        "attention_mask": torch.ones(2, 5, dtype=torch.long),
        "labels": torch.randint(3, 40, (2, 7)),
    }
    tokens = torch.tensor(14)
    plain = model(**batch, num_items_in_batch=tokens).loss
    twice = rdrop_outputs(model, batch, tokens, alpha=5.0).loss
    assert twice.item() == pytest.approx(plain.item(), rel=1e-6)


def test_the_loss_and_gradients_of_simcut_are_those_of_two_passes_of_vectors(
    tiny_config, monkeypatch
):
    """Tokens are cut in the vectors, the divergence is torch's, all in float64."""
    tiny_config.dropout, alpha = 0.0, 3.0
    monkeypatch.setattr(regularization, "CUT_SHARE", 0.4)
    model = VanillaForConditionalGeneration(tiny_config).double().train()
    end, start = tiny_config.eos_token_id, tiny_config.decoder_start_token_id
    sources = torch.tensor([[5, 6, 7, 8, end], [9, 5, end, 0, 0]])
    labels = torch.tensor([[11, 12, 13, end], [14, end, -100, -100]])
    mask = (torch.arange(5) < torch.tensor([[5], [3]])).long()
    targets = torch.tensor([[start, 11, 12, 13], [start, 14, end, 0]])
    batch = {"input_ids": sources, "attention_mask": mask, "labels": labels}
    torch.manual_seed(1)
    loss = simcut_outputs(model, batch, torch.tensor(6), alpha=alpha).loss
    found = torch.autograd.grad(loss, list(model.parameters()))

    torch.manual_seed(1)
    is_kept = torch.rand(2, 5) >= 0.4, torch.rand(2, 4) >= 0.4
    is_kept[0][sources == end], is_kept[1][:, 0] = True, True
    assert not all(kept.all() for kept in is_kept)
    table = model.get_input_embeddings()
    plain = model(input_ids=sources, attention_mask=mask, labels=labels, num_items_in_batch=6)
    cut = model(
        inputs_embeds=table(sources) * is_kept[0][..., None],
        attention_mask=mask,
        decoder_inputs_embeds=table(targets) * is_kept[1][..., None],
    )
    is_real = labels >= 0
    p, q = (outputs.logits[is_real].log_softmax(-1) for outputs in (plain, cut))
    expected = plain.loss + alpha * kl_div(q, p, log_target=True, reduction="sum") / 6
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0.0)
    assert loss > plain.loss
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_simcut_cuts_a_twentieth_of_the_tokens_but_no_end_and_no_start(tiny_config):
    seen, model = {}, VanillaForConditionalGeneration(tiny_config)

    def record(**inputs):
        seen.update(inputs)
        return SimpleNamespace(loss=torch.tensor(2.0), logits=torch.zeros(400, 50, 2))

    model.forward = record
    ids = torch.randint(5, 40, (200, 50))
    ids[:, -1] = tiny_config.eos_token_id
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    outputs = simcut_outputs(model, batch, torch.tensor(9), alpha=3.0)
    assert outputs.logits.shape == (200, 50, 2)
    for name, kept in (("input_ids", -1), ("decoder_input_ids", 0)):
        plain, cut = seen[name].chunk(2)
        assert 0.04 < (plain != cut).float().mean() < 0.06
        assert set(cut[plain != cut].tolist()) == {tiny_config.pad_token_id}
        assert torch.equal(plain[:, kept], cut[:, kept])
    assert torch.equal(seen["labels"], torch.cat([ids, torch.full_like(ids, -100)]))
    assert seen["attention_mask"].all()


def test_simcut_is_refused_beside_rdrop_and_without_zero_vectors(corpus_files, tmp_path):
    with pytest.raises(
        ValueError, match=r"^rdrop_alpha=5.0 and simcut_alpha=3.0: leave one of them out"
    ):
        small_run.recipe(tmp_path, {}, rdrop_alpha=5.0, simcut_alpha=3.0)
    with pytest.raises(ValueError, match="simcut_alpha=-1"):
        small_run.recipe(tmp_path, {}, simcut_alpha=-1.0)
    model = {"zero_pad_embedding": False}
    recipe = small_run.recipe(tmp_path / "run", corpus_files, model=model, simcut_alpha=3.0)
    with pytest.raises(ValueError, match="zero_pad_embedding: false does not have: use rdrop"):
        prepare_run(recipe)


@pytest.mark.parametrize("changes", [BOTH, {"simcut_alpha": 3.0}], ids=["both", "simcut"])
def test_an_interrupted_run_ends_with_the_same_weights(
    changes, corpus_files, tmp_path, monkeypatch
):
    whole = train(small_run.recipe(tmp_path / "whole", corpus_files, **changes))
    small_run.interrupt(monkeypatch, after=3)
    parts = small_run.recipe(tmp_path / "parts", corpus_files, **changes)
    with pytest.raises(KeyboardInterrupt):
        train(parts)
    monkeypatch.undo()
    train(parts)
    plain = train(small_run.recipe(tmp_path / "plain", corpus_files))
    ours, expected = small_run.weights(tmp_path / "parts"), small_run.weights(whole)
    assert all(torch.equal(ours[name], weight) for name, weight in expected.items())
    other = small_run.weights(plain)
    assert any(not torch.equal(other[name], weight) for name, weight in expected.items())


def test_with_everything_off_20_steps_are_those_of_a_plain_loop(corpus_files, tmp_path):
    options = {"max_steps": 20, "save_steps": 20, "average_checkpoints": 1}
    options |= {"tokens_per_step": 480, "tokens_per_batch": 120, "seed": 3}
    found = train(small_run.recipe(tmp_path / "run", corpus_files, **options))
    prepared = prepare_run(small_run.recipe(tmp_path / "plain", corpus_files, **options))
    model = prepared.model.train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    for step, parts in islice(training_steps(prepared, 0), 20):
        assert len(parts) > 1
        optimizer.param_groups[0]["lr"] = 0.01 * min(step / 10, (10 / step) ** 0.5)
        tokens = sum((part.batch["labels"] >= 0).sum() for part in parts)
        for part in parts:
            torch.manual_seed(3 * 1_000_003 + part.number)  # of dropout
            model(**part.batch, num_items_in_batch=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = model.state_dict()
    for name, weight in small_run.weights(found).items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("option", BOTH)
def test_each_of_them_changes_the_weights_of_a_run(option, corpus_files, tmp_path):
    changes = {option: BOTH[option], "max_steps": 2}
    with_it = train(small_run.recipe(tmp_path / "with", corpus_files, **changes))
    without = train(small_run.recipe(tmp_path / "without", corpus_files, max_steps=2))
    ours, other = small_run.weights(with_it), small_run.weights(without)
    assert any(not torch.equal(other[name], weight) for name, weight in ours.items())


def test_text_and_ids_stay_together_where_pairs_are_dropped(tmp_path):
    from hf_vanilla.text.task import prepare

    files = small_run.write_corpus(tmp_path)
    lines = (tmp_path / "train_source.txt").read_text().splitlines()
    lines[2] = ""
    lines[5] = "one " * 30
    (tmp_path / "train_source.txt").write_text("\n".join(lines) + "\n")
    task = prepare(small_run.recipe(tmp_path / "run", files, max_length=12, bpe_dropout=0.1))
    rows = [0, 2, 3, 5, len(task.data.train.rows) - 1]
    texts = task.data.train_text[rows]["source"]
    assert task.data.tokenizer(texts).input_ids == [
        ids.tolist() for ids in task.data.train.rows[rows]["input_ids"]
    ]


def test_bpe_dropout_needs_the_text(tmp_path):
    with pytest.raises(ValueError, match="reads the text again in each epoch"):
        small_run.recipe(tmp_path, {}, prepared="x", bpe_dropout=0.1)
