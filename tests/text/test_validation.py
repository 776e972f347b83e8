"""The two measures of a model in training."""

import json
import math

import pytest
import small_run
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch.nn.functional import log_softmax

from hf_vanilla.text.task import plain_nll, validation_translations
from hf_vanilla.text.translator import translate


def test_the_validation_nll_is_that_of_a_hand_computation(trained, trained_run, corpus_files):
    model, tokenizer = trained
    total, count = 0.0, 0
    for source, target in small_run.digit_pairs()[small_run.TRAIN :]:
        ids, labels = tokenizer(source).input_ids, tokenizer(target).input_ids
        start = model.config.decoder_start_token_id
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([ids]),
                decoder_input_ids=torch.tensor([[start, *labels[:-1]]]),
            ).logits
        total -= log_softmax(logits[0], -1)[range(len(labels)), labels].sum().item()
        count += len(labels)
    lines = (trained_run / "log.jsonl").read_text().splitlines()
    logged = [entry for entry in map(json.loads, lines) if "validation_nll" in entry][-1]
    # float32 sums in another order
    assert logged["validation_nll"] == pytest.approx(total / count, rel=1e-5)
    assert logged["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)


def test_the_translations_are_those_of_every_pair_in_its_order(
    trained, fresh_accelerator, monkeypatch, capsys
):
    monkeypatch.setattr("hf_vanilla.options.PROGRESS_AFTER", 0)
    model, tokenizer = trained
    pairs = small_run.digit_pairs()[small_run.TRAIN :]
    rows = Dataset.from_list([{"source": source, "target": target} for source, target in pairs])
    sources, _ = zip(*pairs, strict=True)
    found = validation_translations(Accelerator(cpu=True), model, tokenizer, rows)
    assert f"0/{len(pairs)}" in capsys.readouterr().err  # a validation may take minutes
    assert found == translate(model, tokenizer, sources)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_nll_of_many_rows_is_that_of_a_hand_computation(dtype):
    logits = torch.randn(3, 700, 11).to(dtype)  # more rows than are widened at once
    labels = torch.randint(0, 11, (3, 700))
    labels[1, 5:] = -100
    real = labels >= 0
    expected = -log_softmax(logits.double(), -1)[real].gather(-1, labels[real][:, None]).sum()
    # float32 sums of some 1,400 terms
    assert plain_nll(logits, labels).item() == pytest.approx(expected.item(), rel=1e-5)
