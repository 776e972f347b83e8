"""Scores equal those of sacreBLEU and carry its signatures."""

import pytest
import sacrebleu
import small_run

from hf_vanilla.data.bleu import Scores, check_bleu_tokenizer, score_translations
from hf_vanilla.text.engines import TorchEngine
from hf_vanilla.text.evaluation import EvaluateOptions, evaluate_files, score_markup
from hf_vanilla.text.translator import translate

REFERENCES = [
    "Das kleine Haus steht am großen See .",
    "Ein Hund läuft über die Wiese , und niemand ruft ihn .",
    "Zwei Männer reparieren ein altes Fahrrad .",
]
TRANSLATIONS = [
    "Das kleine Haus steht an einem großen See .",
    "ein Hund läuft über die Wiese , und keiner ruft ihn .",
    "Zwei Männer reparieren ein altes Fahrrad .",
]


@pytest.mark.parametrize("tokenize", ["13a", "none", "char", "intl"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_and_signature_equal_those_of_sacrebleu(tokenize, lowercase):
    metric = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    expected = metric.corpus_score(TRANSLATIONS, [REFERENCES]).score
    scores = score_translations(TRANSLATIONS, REFERENCES, tokenize=tokenize, lowercase=lowercase)
    assert scores.bleu == expected
    assert 0 < scores.bleu < 100
    assert scores.bleu_signature == str(metric.get_signature())
    assert f"tok:{tokenize}" in scores.bleu_signature
    assert ("case:lc" if lowercase else "case:mixed") in scores.bleu_signature


def test_chrf_and_signature_equal_those_of_sacrebleu():
    metric = sacrebleu.CHRF()
    expected = metric.corpus_score(TRANSLATIONS, [REFERENCES]).score
    scores = score_translations(TRANSLATIONS, REFERENCES)
    assert (scores.chrf, scores.chrf_signature) == (expected, str(metric.get_signature()))


def test_exact_match_of_one_in_three_is_a_third():
    scores = score_translations(TRANSLATIONS, REFERENCES)
    assert scores.exact_match == pytest.approx(100 / 3)
    assert scores.sentences == 3


def test_references_as_translations_score_100():
    scores = score_translations(REFERENCES, REFERENCES)
    # a mean of logarithms, back through the exponential function
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.exact_match == 100


def test_empty_translations_score_0():
    scores = score_translations(["", "", ""], REFERENCES)
    assert (scores.bleu, scores.chrf, scores.exact_match) == (0, 0, 0)


def test_scores_as_text_show_each_signature():
    scores = score_translations(TRANSLATIONS, REFERENCES)
    first, second, third = str(scores).splitlines()
    assert first == f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}"
    assert second == f"chrF {scores.chrf:.2f}  {scores.chrf_signature}"
    assert third == "exact match 33.3 % of 3 sentences"


def test_unequal_counts_are_refused_and_named():
    with pytest.raises(ValueError, match="2 translations, but 3 references"):
        score_translations(TRANSLATIONS[:2], REFERENCES)


def test_no_sentences_are_refused():
    with pytest.raises(ValueError, match="no sentences to score"):
        score_translations([], [])


def test_an_unknown_tokenizer_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(ValueError, match=r"tokenize='moses': choose one of .*13a, char"):
        score_translations(TRANSLATIONS, REFERENCES, tokenize="moses")


def test_a_tokenizer_whose_package_is_missing_is_refused_before_the_work(monkeypatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(ImportError, match=r"tokenize='ja-mecab': .*pip install sacrebleu\[ja\]"):
        check_bleu_tokenizer("ja-mecab")


# --- files -------------------------------------------------------------------------------------


@pytest.fixture
def options(trained_run, corpus_files):
    return {
        "model": str(trained_run),
        "source": corpus_files["train_source"],
        "reference": corpus_files["train_target"],
    }


def test_a_file_is_translated_and_scored(trained, options):
    pairs = small_run.digit_pairs()[: small_run.TRAIN]
    sources, targets = zip(*pairs, strict=True)
    expected = score_translations(translate(*trained, sources), targets)
    scores = evaluate_files(EvaluateOptions(**options))
    assert scores == expected
    assert isinstance(scores, Scores)
    assert scores.exact_match > 50  # the training pairs


def test_tokenize_lowercase_and_num_beams_change_the_score(trained, options):
    pairs = small_run.digit_pairs()[: small_run.TRAIN]
    sources, targets = zip(*pairs, strict=True)
    settings = {"tokenize": "char", "lowercase": True}
    expected = score_translations(translate(*trained, sources, num_beams=1), targets, **settings)
    assert evaluate_files(EvaluateOptions(**options, **settings, num_beams=1)) == expected


def test_failed_sentences_are_an_error_unless_accepted(options, monkeypatch):
    original = TorchEngine.translate_rows

    def fails_for_long_rows(self, rows):
        if max(map(len, rows)) > 10:
            raise RuntimeError("too long")
        return original(self, rows)

    monkeypatch.setattr(TorchEngine, "translate_rows", fails_for_long_rows)
    expected = r"of the lines could not be translated and are empty: \d+, .*--accept_failures True"
    with pytest.raises(ValueError, match=expected):
        evaluate_files(EvaluateOptions(**options))
    scores = evaluate_files(EvaluateOptions(**options, accept_failures=True))
    assert scores.sentences == small_run.TRAIN


def test_one_text_instead_of_a_list_is_refused():
    with pytest.raises(ValueError, match="'abc' is one text: give a list of sentences"):
        score_translations("abc", ["a", "b", "c"])


def test_files_of_unequal_length_are_refused_before_translating(options, corpus_files):
    options["reference"] = corpus_files["validation_target"]
    options["model"] = "nowhere"
    with pytest.raises(ValueError, match="has no translation"):
        evaluate_files(EvaluateOptions(**options))


@pytest.mark.parametrize("name", ["num_beams", "tokens_per_batch"])
def test_an_option_below_1_is_refused(options, name):
    with pytest.raises(ValueError, match=f"{name}=0: give a positive number"):
        evaluate_files(EvaluateOptions(**options, **{name: 0}))


def test_an_unknown_tokenizer_is_refused_before_translating(options, monkeypatch):
    monkeypatch.setattr(EvaluateOptions, "open_translator", None)  # a call would fail
    with pytest.raises(ValueError, match="tokenize='moses'"):
        evaluate_files(EvaluateOptions(**options, tokenize="moses"))


def test_an_option_of_a_model_beside_translations_is_refused():
    with pytest.raises(ValueError, match="num_beams, generation, source: of a model"):
        EvaluateOptions(
            translations="a", reference="b", source="c", num_beams=4, generation={"top_k": 1}
        )


def test_tags_are_scored_against_those_of_the_reference():
    reference = "Klicken Sie auf <b>OK</b> und <a>dann <b>hier</b></a>."
    cases = {  # well-formed, complete, spans of 3 + those found that are the same, words off
        reference: (1, 1, 1.0, 0),
        "Klicken <b>Sie</b> auf OK und <a>dann <b>hier</b></a>.": (1, 1, 4 / 6, 2 / 3),
        "Klicken Sie auf <b>OK und <a>dann</b> hier</a>.": (0, 0, 0.5, 0),
        "Klicken Sie auf OK": (1, 0, 0, None),
    }
    for translation, (well_formed, complete, f1, distance) in cases.items():
        scores = score_markup([translation, "plain"], [reference, "plain <br/>"])
        assert (scores.lines, scores.well_formed, scores.complete) == (1, well_formed, complete)
        assert scores.span_f1 == pytest.approx(f1), translation
        assert scores.distance == pytest.approx(distance), translation
        assert ("- words off" in str(scores)) == (distance is None)
    assert score_markup(["<b>x</b>"], ["x"]) is None


def test_evaluate_shows_the_scores_of_tags_where_references_have_some(tmp_path):
    (tmp_path / "found").write_text("ein <b>Hund</b>\n")
    (tmp_path / "tagged").write_text("<b>ein</b> Hund\n")
    (tmp_path / "plain").write_text("ein Hund\n")
    told = {
        name: str(
            evaluate_files(
                EvaluateOptions(
                    translations=str(tmp_path / "found"), reference=str(tmp_path / name)
                )
            )
        )
        for name in ("tagged", "plain")
    }
    assert "tags of 1 lines: well-formed 1, complete 1, span F1 0.000, 1.00 words" in told["tagged"]
    assert "tags" not in told["plain"]


def test_n_best_lists_are_not_scored_as_text(tmp_path):
    (tmp_path / "nbest").write_text('{"line": 1, "hypotheses": []}\n')
    (tmp_path / "reference").write_text("Klicken Sie auf OK.\n")
    files = {"translations": str(tmp_path / "nbest"), "reference": str(tmp_path / "reference")}
    with pytest.raises(ValueError, match="nbest has n-best lists"):
        evaluate_files(EvaluateOptions(**files))


def test_blank_references_are_named(tmp_path, caplog):
    (tmp_path / "translations").write_text("eins\nHund\nzwei\n\n")
    (tmp_path / "reference").write_text("eins\n\nzwei\n \n")
    files = {name: str(tmp_path / name) for name in ("translations", "reference")}
    evaluate_files(EvaluateOptions(**files))
    assert "reference has blank lines: remove these pairs (lines: 2, 4)" in caplog.text
