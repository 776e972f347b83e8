"""BLEU by length: the right sentences in each bin, sacreBLEU's own figures."""

import pytest
from PIL import Image
from sacrebleu.metrics import BLEU

from hf_vanilla.data.bleu import score_translations
from hf_vanilla.text.length_bleu import (
    PlotLengthBleuOptions,
    length_bleu,
    plot_length_bleu,
    round_edges,
)

LENGTHS = [1, 2, 3, 4, 5, 9]
REFERENCES = [f"a b c d e {number}" for number in range(6)]
RIGHT = list(REFERENCES)
HALF = [*REFERENCES[:3], *(["a b c x y z"] * 3)]


@pytest.fixture
def files(tmp_path):
    """Six sources of these many words, their references and two systems."""
    words = [" ".join("x" * length) for length in LENGTHS]
    told = {"source": words, "reference": REFERENCES, "right": RIGHT, "half": HALF}
    for name, lines in told.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {name: str(tmp_path / name) for name in told}


# --- scores ------------------------------------------------------------------------------------


def test_each_bin_is_scored_by_its_own_sentences():
    found = length_bleu(LENGTHS, REFERENCES, {"half": HALF, "right": RIGHT}, edges=[2, 4, 7, 8])
    assert found.bins == ["≤2", "3-4", "5-7", "8", ">8"]
    assert found.counts == [2, 2, 1, 0, 1]
    assert [score and round(score.bleu, 6) for score in found.scores["right"]] == [
        *(100, 100, 100, None, 100)
    ]
    metric = BLEU()
    for place, members in ((0, [0, 1]), (1, [2, 3]), (2, [4]), (4, [5])):
        texts, references = [HALF[i] for i in members], [REFERENCES[i] for i in members]
        expected = metric.corpus_score(texts, [references]).score
        assert found.scores["half"][place].bleu == pytest.approx(expected)
    assert found.whole["half"] == score_translations(HALF, REFERENCES)


@pytest.mark.parametrize(
    ("lengths", "edges"),
    [
        ([*range(1, 101)], [20, 40, 60, 80]),
        ([*range(1, 13)], [2, 4, 6, 8, 10]),
        ([3] * 50, [1, 2]),
        ([7] * 50 + [400], [1, 2, 3, 4, 5, 6]),
        ([1], [1]),
        ([0, 0], [1]),
        ([900] * 9, [200, 400, 600, 800]),
    ],
    ids=["to 100", "to 12", "all 3", "one long", "one", "blank", "long"],
)
def test_edges_are_round_and_few(lengths, edges):
    assert round_edges(lengths) == edges


# --- pictures ----------------------------------------------------------------------------------


def test_files_of_systems_become_curves_above_their_counts(files, tmp_path, figures):
    output = tmp_path / "a.png"
    plot_length_bleu(
        PlotLengthBleuOptions(
            source=files["source"],
            reference=files["reference"],
            translations=[files["right"], files["half"]],
            edges=[2, 4, 8],
            output=str(output),
        )
    )
    upper, lower = figures[0].axes
    expected = length_bleu(LENGTHS, REFERENCES, {"half": HALF}, edges=[2, 4, 8]).scores["half"]
    assert upper.lines[0].get_ydata() == pytest.approx([100] * 4)
    assert upper.lines[1].get_ydata() == pytest.approx([score.bleu for score in expected])
    assert [bar.get_height() for bar in lower.patches] == [2, 2, 1, 1]
    assert [label.get_text() for label in lower.get_xticklabels()] == ["≤2", "3-4", "5-8", ">8"]
    assert lower.get_xlabel() == "words of the source"
    assert upper.get_legend().get_texts()[0].get_text() == "right: 100.0 in all"
    assert any("tok:13a" in text.get_text() for text in figures[0].texts)
    with Image.open(output) as picture:
        picture.verify()


def test_an_empty_bin_is_a_gap(files, tmp_path, figures):
    options = PlotLengthBleuOptions(
        source=files["source"],
        reference=files["reference"],
        translations=[files["right"]],
        edges=[6, 7, 8],
        output=str(tmp_path / "a.png"),
    )
    plot_length_bleu(options)
    drawn = figures[0].axes[0].lines[0].get_ydata()
    assert drawn.tolist() == pytest.approx([100, float("nan"), float("nan"), 100], nan_ok=True)


def test_length_may_count_characters(files, tmp_path, figures):
    options = PlotLengthBleuOptions(
        source=files["source"],
        reference=files["reference"],
        translations=[files["right"]],
        edges=[3, 9],  # 1, 3, 5, 7, 9 and 17 characters with their spaces
        unit="characters",
        output=str(tmp_path / "a.png"),
    )
    plot_length_bleu(options)
    lower = figures[0].axes[1]
    assert [bar.get_height() for bar in lower.patches] == [2, 3, 1]
    assert lower.get_xlabel() == "characters of the source"


def test_a_model_translates_first(trained_run, corpus_files, tmp_path, figures):
    options = PlotLengthBleuOptions(
        source=corpus_files["train_source"],
        reference=corpus_files["train_target"],
        model=[str(trained_run)],
        tokenize="char",
        output=str(tmp_path / "a.png"),
    )
    plot_length_bleu(options)
    upper, lower = figures[0].axes
    assert sum(bar.get_height() for bar in lower.patches) == 61
    assert upper.lines[0].get_label().startswith(f"{trained_run.name}: ")
    assert max(upper.lines[0].get_ydata()) > 50  # it learned them by heart


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"translations": []}, "nothing to score: give --translations FILE or --model FOLDER"),
        ({"unit": "bytes"}, "unit='bytes': choose one of words, characters"),
        ({"edges": [5, 5]}, r"edges=\[5, 5\]: give rising positive numbers"),
        ({"edges": [0, 5]}, r"edges=\[0, 5\]: give rising positive numbers"),
    ],
    ids=str,
)
def test_impossible_options_are_told(changes, told):
    with pytest.raises(ValueError, match=told):
        PlotLengthBleuOptions(**{"source": "a", "reference": "b", "translations": ["c"], **changes})


def test_a_system_with_lines_missing_is_told(files, tmp_path):
    (tmp_path / "short").write_text("a\nb\n")
    names = {name: files[name] for name in ("source", "reference")}
    options = PlotLengthBleuOptions(
        **names, translations=[str(tmp_path / "short")], output=str(tmp_path / "a.png")
    )
    with pytest.raises(ValueError, match="short has 2 lines, and there are 6 sources"):
        plot_length_bleu(options)


def test_an_unknown_tokenizer_is_refused_before_any_work(tmp_path):
    options = PlotLengthBleuOptions(
        source="nowhere",
        reference="nowhere",
        translations=["nowhere"],
        tokenize="mine",
        output=str(tmp_path / "a.png"),
    )
    with pytest.raises(ValueError, match="tokenize='mine': choose one of"):
        plot_length_bleu(options)
