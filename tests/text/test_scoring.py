"""Forced decoding: log-probabilities equal the loss and the scores of the search."""

import copy
import json

import pytest
import small_run
import torch

from hf_vanilla.text import pair_files
from hf_vanilla.text.n_best import best_translations
from hf_vanilla.text.pair_files import (
    ScoreOptions,
    log_probs_of_pairs,
    pair_ids,
    score_files,
)

PAIRS = small_run.digit_pairs()[:17]


@pytest.fixture
def files(tmp_path, trained_run):
    """Options that score two files, and the two paths."""
    paths = [tmp_path / "source", tmp_path / "target"]
    for path, texts in zip(paths, zip(*PAIRS, strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")

    def options(**changes):
        default = {
            "model": str(trained_run),
            "source": str(paths[0]),
            "target": str(paths[1]),
            "output": str(tmp_path / "out"),
        }
        return ScoreOptions(**{**default, **changes})

    return options, paths


def test_log_probabilities_equal_the_negative_loss_of_each_pair(trained):
    model, tokenizer = trained
    found = log_probs_of_pairs(model, pair_ids(tokenizer, PAIRS))
    for (source, target), log_probs in zip(PAIRS, found, strict=True):
        batch = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            loss = model(**batch).loss.item()
        assert len(log_probs) == batch["labels"].shape[1]
        # a padded batch against one sentence: float32 sums of other orders
        assert -sum(log_probs) / len(log_probs) == pytest.approx(loss, abs=1e-4)


@pytest.mark.parametrize("tokens_per_batch", [1, 30, 4096])
def test_batches_do_not_change_log_probabilities(trained, tokens_per_batch):
    model, tokenizer = trained
    ids = pair_ids(tokenizer, PAIRS)
    found = log_probs_of_pairs(model, ids, tokens_per_batch=tokens_per_batch)
    for pair, log_probs in zip(ids, found, strict=True):
        (alone,) = log_probs_of_pairs(model, [pair])
        assert log_probs == pytest.approx(alone, abs=1e-4)


def test_log_probabilities_equal_the_scores_of_beam_search(trained):
    model, tokenizer = trained
    source = PAIRS[3][0]
    hypotheses = best_translations(model, tokenizer, source, num_beams=4)
    input_ids = tokenizer(source).input_ids
    found = log_probs_of_pairs(model, [(input_ids, one.ids) for one in hypotheses])
    for one, log_probs in zip(hypotheses, found, strict=True):
        penalty = ((5 + len(one.ids)) / 6) ** 0.6
        assert sum(log_probs) / penalty == pytest.approx(one.score, abs=1e-4)


def test_no_pairs_have_no_log_probabilities(trained):
    assert log_probs_of_pairs(trained[0], pair_ids(trained[1], [])) == []


def test_score_writes_one_line_per_pair(files, trained, tmp_path):
    options, _ = files
    assert score_files(options()) == tmp_path / "out"
    lines = (tmp_path / "out").read_text().splitlines()
    expected = log_probs_of_pairs(trained[0], pair_ids(trained[1], PAIRS))
    for line, log_probs in zip(lines, expected, strict=True):
        total, count = line.split("\t")
        assert float(total) == pytest.approx(sum(log_probs), abs=1e-3)  # four digits are written
        assert int(count) == len(log_probs)


def test_score_writes_token_log_probabilities_as_json_lines(files, trained, capsys):
    options, _ = files
    assert score_files(options(output="-", format="jsonl")) is None
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for (_, target), record in zip(PAIRS, records, strict=True):
        assert "".join(record["tokens"]) == target.replace(" ", "␣") + "</s>"
        assert sum(record["token_log_probs"]) == pytest.approx(record["log_prob"])
        assert len(record["tokens"]) == len(record["token_log_probs"])


@pytest.mark.parametrize(
    ("side", "text", "message"),
    [
        (0, "", "line 4: the source is blank: remove the pair"),
        (1, " ", "line 4: the target is blank: remove the pair"),
        (1, "q" * 61, "line 4: the target has 62 tokens, and the model accepts 40"),
    ],
    ids=str,
)
def test_a_blank_or_too_long_side_is_refused_with_its_line(files, tmp_path, side, text, message):
    options, paths = files
    lines = paths[side].read_text(encoding="utf-8").splitlines()
    lines[3] = text
    paths[side].write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        score_files(options())
    assert not (tmp_path / "out").exists()


def test_a_model_with_nan_weights_is_refused_and_no_score_is_written(
    files, trained, tmp_path, monkeypatch
):
    model = copy.deepcopy(trained[0])
    model.base_model.decoder.layers[0].fc1.weight.data[0, 0] = torch.nan
    monkeypatch.setattr(pair_files, "load_translator", lambda name: (model, trained[1]))
    with pytest.raises(ValueError, match="log-probabilities are NaN: a weight is NaN"):
        score_files(files[0]())
    assert not (tmp_path / "out").exists()


def test_files_of_unequal_length_and_bad_options_are_refused(files):
    options, paths = files
    with paths[0].open("a") as file:
        file.write("one more\n")
    with pytest.raises(ValueError, match="line 18 has no translation"):
        score_files(options())
    with pytest.raises(ValueError, match="format='csv': choose one of tsv, jsonl"):
        options(format="csv")
    with pytest.raises(ValueError, match="tokens_per_batch=0: give a positive number"):
        options(tokens_per_batch=0)
