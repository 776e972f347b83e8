"""COMET by a stand-in for the command `comet-score`, which reads the same arguments."""

import sys

import pytest
import small_run

from hf_vanilla.data.bleu import Scores
from hf_vanilla.text.comet import comet_score
from hf_vanilla.text.evaluation import EvaluateOptions, evaluate_files, with_comet
from hf_vanilla.text.task import prepare
from hf_vanilla.training.run import train

# what the command of unbabel-comet 2.2.7 prints with --only_system: file, tab, score to 4 digits.
# Its score here: the share of lines equal to their references, after a check of all arguments
PROGRAM = """#!{python}
import sys
names = [name for name in sys.argv if name.startswith("-")]
assert names == ["--model", "--quiet", "--only_system", "--gpus", "-s", "-t", "-r"], names
value = lambda name: sys.argv[sys.argv.index(name) + 1]
if value("--model") == "gone":
    sys.exit("loading\\nmodel gone is not found")
if value("--model") == "bytes":
    sys.stderr.buffer.write(b"cannot open caf\\xe9\\n")
    sys.exit(1)
if value("--model") == "silent":
    sys.exit()
source, text, reference = (open(value(n), encoding="utf-8").read().splitlines()
                           for n in ("-s", "-t", "-r"))
assert len(source) == len(text) == len(reference)
equal = sum(a == b for a, b in zip(text, reference))
print("Seed set to 1")
print(f"{{value('-t')}}\\tscore: {{equal / len(text):.4f}}")
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "comet-score").write_text(PROGRAM.format(python=sys.executable))
    (folder / "comet-score").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


SOURCES, REFERENCES = ["a", "b", "c\nd", ""], ["x", "y", "z z", ""]


def test_the_score_is_100_times_that_of_the_command(command):
    texts = ["x", "no", "z\nz", ""]  # a line break is no new sentence
    assert comet_score(SOURCES, texts, REFERENCES, model="m") == pytest.approx(75)
    scores = Scores(1.0, "b", 2.0, "c", 0.0, 4)
    found = with_comet(scores, SOURCES, REFERENCES, REFERENCES, model="m")
    assert found.comet == 100
    assert "COMET 100.00  m\n" in str(found)
    assert "COMET" not in str(scores)


def test_evaluate_reports_comet_where_a_model_is_given(command, corpus_files, trained_run):
    files = {"source": corpus_files["validation_source"]}
    files["reference"] = corpus_files["validation_target"]
    options = {"model": str(trained_run), "num_beams": 1, **files}
    scores = evaluate_files(EvaluateOptions(**options, comet="m"))
    # the stand-in counts what exact match counts, to 4 digits
    assert scores.comet == pytest.approx(scores.exact_match, abs=0.005)
    assert evaluate_files(EvaluateOptions(**options)).comet is None


def test_what_fails_is_one_line(command, monkeypatch, tmp_path):
    with pytest.raises(OSError, match=r"--model gone failed: model gone is not found$"):
        comet_score(SOURCES, REFERENCES, REFERENCES, model="gone")
    with pytest.raises(OSError, match=r"--model bytes failed: cannot open caf\ufffd$"):
        comet_score(SOURCES, REFERENCES, REFERENCES, model="bytes")
    with pytest.raises(OSError, match="--model silent reported no score"):
        comet_score(SOURCES, REFERENCES, REFERENCES, model="silent")
    with pytest.raises(ValueError, match="4 sources, 3 translations, 4 references"):
        comet_score(SOURCES, REFERENCES[1:], REFERENCES, model="m")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImportError, match=r"comet-score, and it is not on the PATH.*pipx install"):
        comet_score(SOURCES, REFERENCES, REFERENCES, model="m")


def test_a_run_can_choose_checkpoints_by_comet_or_chrf(corpus_files, tmp_path, command):
    shared = {"eval_steps": 2, "eval_sentences": 3, "average_checkpoints": 1, "max_steps": 4}
    shared |= {"average_best": True, "comet": "m"}
    by_comet = small_run.recipe(tmp_path / "run", corpus_files, best_by="comet", **shared)
    folder = train(by_comet)
    log = (folder / "log.jsonl").read_text()
    assert '"comet": ' in log
    assert '"chrf": ' in log
    assert "COMET" in (folder / "README.md").read_text()
    small_run.recipe(tmp_path, corpus_files, best_by="chrf", **shared)


def test_a_run_without_what_its_scores_need_is_refused_early(corpus_files, tmp_path, monkeypatch):
    best = {"average_best": True, "eval_steps": 2}
    with pytest.raises(ValueError, match="best_by='comet' needs a COMET model: give comet"):
        small_run.recipe(tmp_path, corpus_files, best_by="comet", eval_sentences=3, **best)
    with pytest.raises(ValueError, match="best_by='chrf' needs translations: set eval_sentences"):
        small_run.recipe(tmp_path, corpus_files, best_by="chrf", **best)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImportError, match="COMET needs the command comet-score"):
        prepare(small_run.recipe(tmp_path, corpus_files, comet="m", eval_sentences=3))
