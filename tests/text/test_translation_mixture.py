"""A run on a mixture: tags, noise and stages; interrupted runs; what is refused early."""

import pytest
import small_run
import torch
import yaml

from hf_vanilla.text.task import prepare
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.run import train

VALIDATION = ("validation_source", "validation_target")


def entries(files, **second):
    """The training files twice: as they are; and with tag, noise and a stage."""
    text = {"source": files["train_source"], "target": files["train_target"]}
    other = {"tag": "<bt>", "weight": 2, "first_step": 2, "typo_noise": 0.1, "casing_noise": 0.2}
    return [text, {**text, **other, **second}]


def mixed_recipe(folder, files, mixture, **changes):
    validation = {name: files[name] for name in VALIDATION}
    # twice as many micro-batches as steps
    changes = {"tokens_per_batch": 120, "mixture": mixture, **changes}
    return small_run.recipe(folder, validation, **changes)


def test_an_interrupted_run_on_a_mixture_ends_with_the_same_weights(
    corpus_files, tmp_path, monkeypatch
):
    mixture = entries(corpus_files)
    whole = train(mixed_recipe(tmp_path / "whole", corpus_files, mixture, bpe_dropout=0.1))
    small_run.interrupt(monkeypatch, after=3)
    parts = mixed_recipe(tmp_path / "parts", corpus_files, mixture, bpe_dropout=0.1)
    with pytest.raises(KeyboardInterrupt):
        train(parts)
    monkeypatch.undo()
    train(mixed_recipe(tmp_path / "parts", corpus_files, mixture, bpe_dropout=0.1))
    ours, expected = small_run.weights(tmp_path / "parts"), small_run.weights(whole)
    assert all(torch.equal(ours[name], weight) for name, weight in expected.items())
    with pytest.raises(ValueError, match="mixture"):
        train(mixed_recipe(tmp_path / "parts", corpus_files, entries(corpus_files, weight=3)))


def test_batches_have_tags_noise_and_whole_targets(corpus_files, tmp_path):
    mixture = entries(corpus_files, first_step=1)
    task = prepare(mixed_recipe(tmp_path / "run", corpus_files, mixture))
    tokenizer, tag = task.data.tokenizer, task.data.tokenizer.convert_tokens_to_ids("<bt>")
    order, texts, seen = task.order(2), task.data.train_text, set()
    assert len(tokenizer) == task.model().config.vocab_size == small_run.MODEL["vocab_size"] + 1
    for number in range(40):
        rows = order[number]
        batch = task.batch(rows, torch.Generator().manual_seed(number))
        is_second = rows[0] >= small_run.TRAIN
        assert all((row >= small_run.TRAIN) == is_second for row in rows)
        assert ((batch["input_ids"][:, 0] == tag) == is_second).all()
        labels = [ids[ids >= 0] for ids in batch["labels"]]
        targets = tokenizer.batch_decode(labels, skip_special_tokens=True)
        assert targets == texts[rows]["target"]
        sources = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
        plain = [text.replace("<bt> ", "<bt>") for text in texts[rows]["source"]]
        seen.add((is_second, sources == plain))
    assert (False, True) in seen
    assert (True, False) in seen  # noise
    assert (False, False) not in seen


def test_options_at_their_defaults_change_no_weight(corpus_files, tmp_path):
    """20 steps on the files, and on the same text with every option given at its default."""
    (text, _) = entries(corpus_files)
    text |= {"weight": 1, "first_step": 1, "last_step": None, "tag": None}
    text |= {"casing_noise": 0, "typo_noise": 0.0}
    off = {"rdrop_alpha": 0.0, "bpe_dropout": 0.0, "max_steps": 20}
    files = small_run.recipe(tmp_path / "a", corpus_files, tokens_per_batch=120, max_steps=20)
    given = train(mixed_recipe(tmp_path / "b", corpus_files, [text], **off))
    ours, expected = small_run.weights(given), small_run.weights(train(files))
    assert all(torch.equal(ours[name], weight) for name, weight in expected.items())


def test_a_recipe_file_has_a_list_of_corpora(corpus_files, tmp_path):
    path = tmp_path / "recipe.yaml"
    mixture = entries(corpus_files, tag="😀", target="\u00fc😀.de")
    path.write_text(yaml.safe_dump({"max_steps": 9, "mixture": mixture}, allow_unicode=True))
    recipe = read_recipe(["--recipe", str(path)])
    assert [part.tag for part in recipe.data.corpora] == [None, "😀"]
    assert recipe.data.corpora[1].target == "\u00fc😀.de"
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert read_recipe(["--recipe", str(tmp_path / "again.yaml")]) == recipe
    # other data on the command line replaces the mixture
    other = ["--dataset", "numbers"]
    assert read_recipe(["--recipe", str(path), *other]).data.corpora == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 1}, r"first_step=2 of .* is after the last step, max_steps=1"),
        ({"dataset": "numbers"}, r"^mixture=.* and dataset='numbers': leave one of them out"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_before_data_are_read(
    changes, message, corpus_files, tmp_path
):
    with pytest.raises(ValueError, match=message):
        mixed_recipe(tmp_path, corpus_files, entries(corpus_files), **changes)


def test_a_missing_file_and_a_foreign_vocabulary_are_named(corpus_files, tmp_path, tiny_tokenizer):
    missing = entries(corpus_files, target=str(tmp_path / "gone.de"))
    with pytest.raises(FileNotFoundError, match=r"gone.de: no such file"):
        prepare(mixed_recipe(tmp_path / "a", corpus_files, missing))
    tiny_tokenizer.save_pretrained(tmp_path / "tokenizer")
    mixture, tokenizer = entries(corpus_files), str(tmp_path / "tokenizer")
    recipe = mixed_recipe(tmp_path / "b", corpus_files, mixture, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="tag='<bt>' is not in the vocabulary"):
        prepare(recipe)
