"""One command from a teacher to a student: its stages, what is kept, and what is refused."""

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_run
import yaml
from opus import marian_model

from hf_vanilla.convert import distill as module
from hf_vanilla.convert.distill import DistillOptions, distill
from hf_vanilla.data.lines import read_lines
from hf_vanilla.hub.card import languages_of, license_of
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.text.loading import demo_model, load_translator

STUDENT = {"max_steps": 8, "warmup_steps": 2, "save_steps": 4, "trackers": ["none"]}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZES", (1, 2))
    monkeypatch.setattr(module, "ROUNDS", 1)


def student(folder, corpus_files, **changes):
    """The file of a student's recipe, which has validation files alone."""
    files = {name: corpus_files[name] for name in corpus_files if name.startswith("validation")}
    recipe = {**small_run.TRAINING, **STUDENT, **files, **changes}
    path = folder / "student.yaml"
    path.write_text(yaml.safe_dump({**recipe, "trackers": "none"}), encoding="utf-8")
    return str(path)


def options_of(folder, teacher, corpus_files, recipe, **changes):
    given = {"teacher": str(teacher), "source": corpus_files["train_source"], "student": recipe}
    return DistillOptions(**{**given, "output": str(folder / "out"), **changes})


def test_a_student_is_trained_quantized_and_compared_and_a_second_call_changes_nothing(
    corpus_files, trained_run, tmp_path, caplog, monkeypatch
):
    caplog.set_level("INFO")
    files = {}
    for side in ("source", "target"):  # with a blank line and a tab, and so without rows for one
        first, second, *rest = read_lines(corpus_files[f"train_{side}"])
        files[side] = str(tmp_path / side)
        text = "\n".join([first, "", "\t", second, *rest, ""])
        Path(files[side]).write_text(text, encoding="utf-8")
    recipe = student(tmp_path, corpus_files, source_language=None, target_language=None)
    teacher = Path(shutil.copytree(trained_run, tmp_path / "teacher"))
    card = (teacher / "README.md").read_text()
    (teacher / "README.md").write_text(card.replace("---\n", "---\nlicense: mit\n", 1))
    options = options_of(tmp_path, teacher, corpus_files, recipe, **files)
    table, out = distill(options), Path(options.output)
    shown = [line for line in caplog.messages if line.startswith("hf-vanilla ")]
    commands = [line.split()[1] for line in shown]
    assert commands == ["translate-corpus", "train", "quantize", *["evaluate"] * 3]
    # the teacher knows its corpus by heart, so the best of its translations is the reference
    pairs = [list(read_lines(out / f"train.{side}")) for side in ("source", "target")]
    known = dict(small_run.digit_pairs())
    assert len(pairs[0]) > 0.9 * small_run.TRAIN
    assert [known[source] for source in pairs[0]] == pairs[1]
    assert [row.split(" | ")[0] for row in table.splitlines()[2:5]] == [
        f"| {name}" for name in (teacher, out / "student", out / "student_int8")
    ]
    assert (out / "report.md").read_text() == table
    assert table in (out / "student" / "README.md").read_text()
    for name in ("student", "student_int8"):  # as the teacher's card states them
        assert (license_of(str(out / name)), *languages_of(str(out / name))) == ("mit", "en", "de")
    model, _ = load_translator(str(out / "student"))
    assert model.config.d_model == small_run.MODEL["d_model"]
    start = out / "start/model.safetensors"
    written = [out / f"{name}/model.safetensors" for name in ("student", "student_int8")]
    before = start.stat().st_mtime_ns, [file.read_bytes() for file in written]
    monkeypatch.setattr(module, "_comparison", lambda *_: table)
    assert distill(options) == table
    assert before == (start.stat().st_mtime_ns, [file.read_bytes() for file in written])
    assert (out / "student" / "README.md").read_text().count("Beside its teacher") == 1
    languages = {"source_language": None, "target_language": None}
    student(tmp_path, corpus_files, decoding={"num_beams": 3}, **languages)  # both students have it
    distill(options)
    settings = [(file.parent / "generation_config.json").read_text() for file in written]
    assert settings[0] == settings[1]
    assert '"num_beams": 3' in settings[0]
    other = tmp_path / "other"
    shutil.copytree(trained_run, other)
    with pytest.raises(ValueError, match="earlier run"):
        distill(options_of(tmp_path, other, corpus_files, recipe, **files))
    with pytest.raises(ValueError, match="begun with --target: give it again, or choose another"):
        distill(replace(options, target=None))


def test_the_size_of_a_model_of_the_package_is_in_the_table(corpus_files, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "times_as_fast", lambda *_: [1.0])
    file = student(tmp_path, corpus_files, model=small_run.MODEL)
    recipe = module._student_recipe(options_of(tmp_path, "numbers", corpus_files, file), tmp_path)
    size = sum(file.stat().st_size for file in Path(demo_model()).glob("*.safetensors")) / 1e6
    table = module._comparison(["numbers"], recipe)
    assert table.splitlines()[2].startswith(f"| numbers | {size:.1f} | ")
    assert size > 1


def test_an_odd_line_is_warned_of_by_the_evaluation_and_not_again_by_the_timing(
    corpus_files, tmp_path, caplog
):
    odd = {side: str(tmp_path / side) for side in ("validation_source", "validation_target")}
    for path in odd.values():
        Path(path).write_text("qwx zqx\n", encoding="utf-8")
    file = student(tmp_path, {**corpus_files, **odd}, model=small_run.MODEL)
    recipe = module._student_recipe(options_of(tmp_path, "numbers", corpus_files, file), tmp_path)
    module._comparison(["numbers"], recipe)
    assert caplog.text.count("probably wrong") == 1


def test_ready_translations_need_no_teacher_and_odd_pairs_are_dropped(
    corpus_files, tmp_path, caplog
):
    caplog.set_level("INFO")
    lines = list(read_lines(corpus_files["train_target"]))
    lines[0], lines[1] = "", "sehr lang " * 30
    (tmp_path / "ready").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recipe = student(tmp_path, corpus_files, model=small_run.MODEL)
    options = options_of(tmp_path, tmp_path / "ready", corpus_files, recipe)
    assert f"| {tmp_path / 'out' / 'student'} |" in distill(options)
    assert "pairs for the student: 59; dropped: 1 empty, 1 unequal lengths" in caplog.text
    assert not (tmp_path / "out" / "translations").exists()


def test_translations_of_other_lines_than_the_source_are_refused(tmp_path):
    for name, lines in (("a.en", "one\ntwo\n"), ("a.de", "eins\nzwei\n")):
        (tmp_path / name).write_text(lines)
    (tmp_path / "0.tsv").write_text("one\teins\t-0.1\nthree\tdrei\t-0.1\n")
    options = SimpleNamespace(
        has_model=True, source=str(tmp_path / "a.en"), target=str(tmp_path / "a.de")
    )
    with pytest.raises(ValueError, match="translations of 'three' are of another line"):
        list(module._best_translations(options, tmp_path, 2))


def test_the_first_and_the_last_layers_and_those_evenly_between_are_kept(tmp_path, corpus_files):
    sizes = {**small_run.MODEL, "vocab_size": 11, "encoder_layers": 5, "decoder_layers": 3}
    model = VanillaForConditionalGeneration(VanillaConfig(**sizes))
    wanted = {"encoder_layers": 3, "decoder_layers": 1}
    options = options_of(tmp_path, "numbers", corpus_files, student(tmp_path, corpus_files))
    recipe = replace(module._student_recipe(options, tmp_path), model=wanted)
    kept = module._initial_layers("teacher", model, recipe, tmp_path / "start")
    assert kept == {"encoder_layers": [0, 2, 4], "decoder_layers": [0]}
    third = model.model.encoder.layers[2]
    processor = SimpleNamespace(save_pretrained=lambda _: None)
    module.write_layers(tmp_path / "start", str(tmp_path), model, processor, kept)
    assert model.model.encoder.layers[1] is third
    assert (model.config.encoder_layers, len(model.model.decoder.layers)) == (3, 1)


def test_what_does_not_fit_is_refused_in_one_line_before_anything_is_written(
    corpus_files, trained_run, tmp_path
):
    short = tmp_path / "short"
    short.write_text("eins\n", encoding="utf-8")
    (empty := tmp_path / "empty").touch()
    cases = (
        ({}, {"model": {"decoder_layers": 3}}, "decoder_layers=3 and its teacher .* 1"),
        ({}, {"model": {"d_model": 24}}, "d_model is 16 there and 24 here"),
        ({}, {"tokenizer": "elsewhere"}, "the model has its own tokenizer"),
        ({}, {"validation_source": None, "validation_target": None}, "validation_source and"),
        ({"source": "nowhere"}, {}, "nowhere"),
        ({"source": str(empty)}, {}, "empty is empty: give sentences"),
        ({"teacher": str(tmp_path / "nobody")}, {}, "nobody"),
        ({"target": str(short)}, {}, "short"),
        ({"teacher": str(short)}, {}, "short"),
        (
            {"teacher": corpus_files["train_target"]},
            {"initial_model": "runs/start"},
            "initial_model='runs/start'",
        ),
        ({"student": "studnt_6_2"}, {}, "did you mean 'student_6_2'"),
    )
    for changes, recipe, told in cases:
        options = options_of(
            tmp_path,
            trained_run,
            corpus_files,
            student(tmp_path, corpus_files, **recipe),
        )
        with pytest.raises((ValueError, OSError), match=told):
            distill(DistillOptions(**{**vars(options), **changes}))
        assert not Path(options.output).exists(), told


@pytest.mark.parametrize("option", ["student", "source", "target", "teacher"])
def test_an_input_in_the_output_folder_is_not_overwritten(corpus_files, tmp_path, option):
    recipe, ready = student(tmp_path, corpus_files), corpus_files["train_target"]
    inside = tmp_path / ("student.yaml" if option == "student" else "train.target")
    if option != "student":
        shutil.copy(ready, inside)
        recipe = shutil.move(recipe, tmp_path / "recipe.yaml")
    options = options_of(tmp_path, ready, corpus_files, str(recipe), target=ready)
    options, before = replace(options, output=str(tmp_path)), inside.read_bytes()
    with pytest.raises(ValueError, match=f"{inside.name} would be overwritten: choose another"):
        distill(replace(options, **{option: str(inside)}))
    assert inside.read_bytes() == before


def test_a_teacher_of_another_class_is_refused_before_it_translates(
    corpus_files, trained_run, tmp_path
):
    marian_model().save_pretrained(tmp_path / "opus")
    load_translator(str(trained_run))[1].save_pretrained(tmp_path / "opus")
    recipe = student(tmp_path, corpus_files, model={"encoder_layers": 1, "decoder_layers": 1})
    options = options_of(tmp_path, tmp_path / "opus", corpus_files, recipe)
    with pytest.raises(ValueError, match="holds MarianMTModel: convert it by hf-vanilla convert"):
        distill(options)
    assert not Path(options.output).exists()


@pytest.mark.release
def test_sigkill_in_each_stage_changes_nothing_in_the_end(corpus_files, trained_run, tmp_path):
    command = [sys.executable, "-m", "hf_vanilla", "distill", "--teacher", str(trained_run)]
    command += ["--source", corpus_files["train_source"]]
    command += ["--student", student(tmp_path, corpus_files), "--output"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for stage in ("translations", "train.source", "start", "student/checkpoint-4", "student_int8"):
        process = subprocess.Popen([*command, str(killed)], stderr=subprocess.DEVNULL)
        while process.poll() is None and not (killed / stage).exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for folder in (killed, whole):  # a process too: conftest changes the number of threads
        subprocess.run([*command, str(folder)], check=True, capture_output=True)
    files = ["train.source", "train.target"]
    files += [f"{name}/model.safetensors" for name in ("start", "student", "student_int8")]
    for name in files:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
