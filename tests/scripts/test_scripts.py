"""Each script once, as a user runs it: it shows its result, or its error in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import small_run
from huggingface_hub import ModelCard
from PIL import Image
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.text.evaluation import EvaluateOptions, evaluate_files
from hf_vanilla.text.translator import translate
from hf_vanilla.training.parameter_table import ParameterTableOptions, parameter_table

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
SOURCES = ["one two", "", "three four five"]


@pytest.fixture
def script(tmp_path):
    """Runs a script in an empty working directory."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def run(name, *arguments, text=None, fails=False):
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / name), *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            input=None if text is None else text.encode("utf-8"),
            capture_output=True,
            check=False,
        )
        done.stdout, done.stderr = (part.decode("utf-8") for part in (done.stdout, done.stderr))
        assert (done.returncode == 1) if fails else (done.returncode == 0), done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_train_and_average(script, corpus_files, tmp_path):
    recipe = small_run.recipe("run", corpus_files, eval_sentences=3)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    done = script("train.py", "--recipe", "recipe.yaml", "--max_steps", "4")
    assert done.stdout == "run\n"
    assert "bleu" in done.stderr
    assert "shared tensor" not in done.stderr
    assert ModelCard.load(tmp_path / "run" / "README.md").data.eval_results
    again = script("train.py", "--recipe", "recipe.yaml", "--max_steps", "4")
    assert "nothing to train after step 4" in again.stderr

    averaged = script("average_checkpoints.py", "--run", "run", "--output", "mean", "--last", "2")
    assert averaged.stdout == "mean\n"
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean").config.d_model == 16


def test_translate_from_stdin_to_stdout(script, trained, trained_run):
    done = script("translate.py", "--model", trained_run, text="\n".join(SOURCES) + "\n")
    assert done.stdout.split("\n") == [*translate(*trained, SOURCES), ""]
    assert done.stderr == ""


def test_export_for_ctranslate2_and_translate_with_it(script, trained_run):
    pytest.importorskip("ctranslate2")
    done = script(
        *("export_ctranslate2.py", "--model", trained_run, "--output", "there"),
        *("--quantization", "int8"),
    )
    assert done.stdout == "there\n"
    assert "CTranslate2 decodes differently" in done.stderr
    lines = script(
        "translate.py", "--model", "there", "--engine", "ctranslate2", text="one two\n\n"
    )
    assert lines.stdout.count("\n") == 2
    assert lines.stdout.startswith("eins")


def test_translate_corpus_prints_what_it_did_and_goes_on(script, trained, trained_run, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(SOURCES), encoding="utf-8")
    told = ("--model", trained_run, "--input", "in.txt", "--output", "out")
    told += ("--lines_per_shard", "2")
    done = script("translate_corpus.py", *told)
    assert done.stdout == "out: 3 lines in 2 shards, 0 done before, 0 redone\n"
    texts = [path.read_text(encoding="utf-8") for path in sorted((tmp_path / "out").glob("*.txt"))]
    assert "".join(texts).split("\n") == [*translate(*trained, SOURCES), ""]
    again = script("translate_corpus.py", *told)
    assert again.stdout == "out: 3 lines in 2 shards, 2 done before, 0 redone\n"


def test_translate_refuses_an_existing_output_in_one_line(script, trained_run, tmp_path):
    (tmp_path / "out").write_text("mine")
    done = script("translate.py", "--model", trained_run, "--output", "out", text="one", fails=True)
    assert done.stderr == "error: out exists: choose another name or add --overwrite\n"
    assert (tmp_path / "out").read_text() == "mine"


def test_evaluate_prints_every_figure_with_its_signature(script, trained_run, corpus_files):
    source, reference = corpus_files["train_source"], corpus_files["train_target"]
    files = {"source": source, "reference": reference}
    done = script(
        "evaluate.py", "--model", trained_run, "--source", source, "--reference", reference
    )
    assert done.stdout == f"{evaluate_files(EvaluateOptions(model=str(trained_run), **files))}\n"


def test_plot_prints_the_picture_it_drew(script, trained_run, tmp_path):
    told = ("--model", trained_run, "--sentence", "one two", "--output", "a.png")
    done = script("plot.py", "attention", *told)
    assert done.stdout == "a.png\n"
    with Image.open(tmp_path / "a.png") as picture:
        picture.verify()


def test_plot_refuses_an_existing_picture_in_one_line(script, tmp_path):
    (tmp_path / "curves.png").write_text("mine")
    done = script("plot.py", "curves", "--run", "runs/mine", fails=True)
    told = "error: curves.png exists: choose another name or add --overwrite\n"
    assert done.stderr == told


def test_train_tokenizer_prints_its_folder(script, corpus_files, tmp_path):
    files = [corpus_files["train_source"], corpus_files["train_target"]]
    done = script(
        "train_tokenizer.py", "--files", *files, "--output", "words", "--vocab_size", "271"
    )
    assert done.stdout == "words\n"
    assert len(AutoTokenizer.from_pretrained(tmp_path / "words")) == 271


def test_finetune_prints_the_folder_of_the_result(script, trained_run, corpus_files, tmp_path):
    files = [f"--{name}={path}" for name, path in corpus_files.items()]
    done = script(
        "finetune.py",
        *("--model", trained_run, *files, "--max_length", "40"),
        *("--output_dir", "tuned", "--max_steps", "3", "--use_cpu", "True", "--report_to", "none"),
        *("--eval_strategy", "steps", "--eval_steps", "3", "--predict_with_generate", "True"),
    )
    assert done.stdout.splitlines()[-1] == "tuned"
    assert "eval_bleu" in done.stdout
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tuned").config.d_model == 16


def test_push_to_hub_refuses_a_folder_without_a_model_in_one_line(script, tmp_path):
    (tmp_path / "none").mkdir()
    done = script("push_to_hub.py", "--model", "none", "--repo_id", "me/none", fails=True)
    assert done.stderr.startswith("error: none is not a model folder")
    assert done.stderr.count("\n") == 1


def test_push_to_hub_without_a_network_says_so_in_one_line(script, trained_run):
    done = script("push_to_hub.py", "--model", trained_run, "--repo_id", "me/none", fails=True)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_the_app_writes_a_space_and_prints_its_folder(script, trained_run, tmp_path):
    pytest.importorskip("gradio")
    done = script("app.py", "--model", trained_run, "--write_space", "space")
    assert done.stdout == "space\n"
    assert (tmp_path / "space" / "model" / "config.json").is_file()


def test_count_parameters_prints_table_3_from_anywhere(script):
    folder = SCRIPTS.parent / "hf_vanilla" / "recipes" / "table3"
    done = script("count_parameters.py")
    assert done.stdout == f"{parameter_table(ParameterTableOptions(folder=str(folder)))}\n"
    other = script("count_parameters.py", "--folder", folder.with_name("table4"))
    assert "| wsj_only " in other.stdout


def test_the_demo_shows_ten_translations_a_score_and_a_picture(script, tmp_path):
    model = {**small_run.MODEL, "vocab_size": 300, "max_position_embeddings": 64}
    done = script(
        "demo.py",
        *("--output_dir", "demo", "--max_steps", "2", "--tokens_per_step", "512"),
        *("--tokens_per_batch", "512", "--save_steps", "1", "--eval_sentences", "0"),
        *("--use_cpu", "True", "--decoding.num_beams", "2", "--decoding.max_new_tokens", "3"),
        *(f"--model.{name}={value}" for name, value in model.items()),
    )
    assert done.stdout.count("\n    -> ") == 10
    assert "All 1,000 unseen numbers:\nBLEU " in done.stdout
    assert "tok:char" in done.stdout
    assert "model folder: demo\n" in done.stdout
    with Image.open(tmp_path / "demo" / "attention.png") as picture:
        picture.verify()
