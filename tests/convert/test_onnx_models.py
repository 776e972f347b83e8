"""Classifiers, detectors and forecasters in ONNX Runtime: their programs give our results."""

import csv
import re
import shutil
import signal
import subprocess
import sys

import detection_files
import image_models
import numpy as np
import pytest
import torch
from onnx_folders import BLOCKED, runner_of, without_reader
from PIL import Image
from scene_models import SCENE_FORMS, scene_model

from hf_vanilla import quantize
from hf_vanilla.convert.export import ExportOptions, QuantizeOptions, export, quantize_folder
from hf_vanilla.convert.onnx.models import RUNNERS, SAMPLING
from hf_vanilla.convert.vit_checkpoints import timm_processor
from hf_vanilla.data.images import as_rgb
from hf_vanilla.families import TASKS
from hf_vanilla.images.batches import image_processor
from hf_vanilla.images.classifier import Classifier
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.objects.detector import load_detector
from hf_vanilla.tracks.forecast import forecasts
from hf_vanilla.tracks.forecaster import new_forecaster, predict
from hf_vanilla.tracks.formats import TrackSource, read_tracks

onnx = pytest.importorskip("onnx")
for name in ("onnxscript", "onnxruntime"):
    pytest.importorskip(name)

EXPORTED_FORMS = ["modes", "one", "density", "second", *SCENE_FORMS]
GRAPHS = {
    "classify": """<ir_version: 10, opset_import: ["": 20]>
        means (float[B, 3, H, W] pixel_values) => (float[B, 3] logits) <int64[2] sides = {2, 3}>
        { logits = ReduceMean<keepdims = 0>(pixel_values, sides) }""",
    "detect": """<ir_version: 10, opset_import: ["": 20]>
        means (float[B, 3, H, W] pixel_values, int64[B, H, W] pixel_mask)
            => (float[B, 1, 3] logits, float[1, 1, 4] pred_boxes)
        <int64[2] sides = {2, 3}, int64[1] one = {1}, float[1, 1, 4] box = {0.5, 0.5, 0.5, 0.5}>
        {
            means = ReduceMean<keepdims = 0>(pixel_values, sides)
            logits = Unsqueeze(means, one)
            pred_boxes = Identity(box)
        }""",
}


def exported(folder, **options):
    given = {"model": str(folder), "output": f"{folder}-onnx", "format": "onnx", **options}
    return export(ExportOptions(**given))


def typed(folder, program, *arguments, text=""):
    command = command_of(folder, program, *arguments)
    return subprocess.run(command, input=text, capture_output=True, check=False, text=True)


def command_of(folder, program, *arguments):
    return [sys.executable, "-c", BLOCKED, str(folder / program), *arguments]


@pytest.fixture(params=GRAPHS)
def simple(request, tmp_path):
    """A program and its folder, with a graph whose logits are the means of the channels."""
    program, folder = request.param, tmp_path / "exported"
    folder.mkdir()
    onnx.save(onnx.parser.parse_model(GRAPHS[program]), folder / "model.onnx")
    (folder / "config.json").write_text('{"id2label": {"0": "a", "1": "b", "2": "c"}}')
    processor = image_processor((9, 7), [], [])
    if program == "detect":
        processor = detection_files.detection_processor(9, 12)
    processor.image_mean, processor.image_std = [0.0] * 3, [0.1, 0.2, 0.3]
    processor.save_pretrained(folder)
    shutil.copy(RUNNERS / f"{program}.py", folder)
    return program, folder


def picture(width, height):
    values = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_what_is_for_translators_is_refused_by_the_task_of_the_model(tmp_path):
    ours = tmp_path / "vit"
    image_models.vit().save_pretrained(ours)
    for options, remedy in (
        ({"format": "ctranslate2"}, "use --format onnx"),
        ({"layout": "transformers.js"}, "leave --layout out"),
    ):
        with pytest.raises(ValueError, match=f"vit is of image_classification: {remedy}"):
            exported(ours, **options)
    with pytest.raises(ValueError, match=r"this command quantizes translation .*quantize\(model"):
        quantize_folder(QuantizeOptions(model=str(ours), output=f"{ours}-int8"))


def test_an_int8_model_is_not_exported(tmp_path):
    vit, processor = image_models.vit(), image_processor((15, 20), [0.5] * 3, [0.5] * 3)
    quantize(vit).save_pretrained(tmp_path / "vit")
    processor.save_pretrained(tmp_path / "vit")
    detector = detection_files.tiny_detector(tmp_path / "detr")
    quantize(detector).save_pretrained(tmp_path / "detr")
    for name in ("vit", "detr"):
        with pytest.raises(ValueError, match=f"{name} has int8 weights: give the float model"):
            exported(tmp_path / name)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        *[(f"do_{step}", False, "False: .* needs True") for step in ("resize", "rescale")],
        ("do_normalize", False, "False: the exported program needs True"),
        ("image_mean", None, "None: set it in preprocessor_config.json"),
    ],
)
def test_a_processor_that_the_program_does_not_imitate_is_refused(tmp_path, field, value, told):
    image_models.vit().save_pretrained(tmp_path / "vit")
    processor = image_processor((15, 20), [0.5] * 3, [0.5] * 3)
    setattr(processor, field, value)
    processor.save_pretrained(tmp_path / "vit")
    with pytest.raises(ValueError, match=f"{field}={told}"):
        exported(tmp_path / "vit")


@pytest.mark.release
@pytest.mark.parametrize("problem_type", [None, "multi_label_classification"])
def test_a_classifier_gives_the_same_probabilities(tmp_path, problem_type):
    model = image_models.vit(problem_type=problem_type)
    processor = image_processor((15, 20), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    model.save_pretrained(tmp_path / "vit")
    processor.save_pretrained(tmp_path / "vit")
    folder = exported(tmp_path / "vit")
    pictures = [picture(31, 47), picture(20, 15), picture(64, 64).convert("L")]
    ours = Classifier(model, processor).probabilities([p.convert("RGB") for p in pictures])
    theirs = runner_of(folder, "classify").Classifier(folder).probabilities(pictures)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    pictures[0].save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    done = typed(folder, "classify.py", str(tmp_path / "a.png"), str(tmp_path / "b.png"))
    assert done.stdout.startswith(
        f"{tmp_path / 'a.png'},{model.config.id2label[ours[0].argmax().item()]},"
    )
    assert done.stderr.startswith(f"error: {tmp_path / 'b.png'}: ")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("size", [(16, 16), (9, 20)])
def test_a_classifier_cuts_images_as_models_of_timm_read_them(size, tmp_path):
    onnx.save(onnx.parser.parse_model(GRAPHS["classify"]), tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text('{"id2label": {"0": "a", "1": "b", "2": "c"}}')
    pretrained = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "crop_pct": 0.9}
    config = image_models.vit(image_size=list(size), patch_size=1).config
    processor = timm_processor(config, {"pretrained_cfg": pretrained})
    processor.save_pretrained(tmp_path)
    read = runner_of(RUNNERS, "classify").Classifier(tmp_path)
    for image in (picture(31, 47), picture(40, 23), picture(16, 16)):
        expected = processor(image, return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(read.pixels(image), expected, atol=1e-6)


@pytest.mark.release
def test_a_classifier_of_square_images_writes_csv(tmp_path):
    model = image_models.vit(image_size=15, num_labels=2)
    model.config.id2label = {0: "tench, Tinca", 1: "b, c"}
    model.save_pretrained(tmp_path / "vit")
    image_processor((15, 15), [0.5] * 3, [0.5] * 3).save_pretrained(tmp_path / "vit")
    picture(15, 15).save(tmp_path / "a.png")
    folder = exported(tmp_path / "vit")
    done = typed(folder, "classify.py", str(tmp_path / "a.png"))
    (row,) = csv.reader(done.stdout.splitlines())
    assert row[0] == str(tmp_path / "a.png")
    assert row[1] in model.config.id2label.values()
    assert 0.5 <= float(row[2]) <= 1
    Image.new("1", (20_000, 20_000)).save(tmp_path / "large.png")
    done = typed(folder, "classify.py", str(tmp_path / "large.png"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.match("error: .*large.png: .*400000000 pixels", done.stderr)


def test_images_of_16_bits_are_scaled_as_in_the_package(simple, tmp_path):
    program, folder = simple
    wide = Image.fromarray(np.linspace(9_000, 40_000, 108).astype(np.uint16).reshape(9, 12))
    wide.save(tmp_path / "wide.png")
    as_rgb(wide).save(tmp_path / "narrow.png")
    paths = [str(tmp_path / name) for name in ("wide.png", "narrow.png")]
    done = typed(folder, f"{program}.py", *paths)
    (first, *ours), (second, *expected) = csv.reader(done.stdout.splitlines())
    assert ([first, second], ours, done.stderr) == (paths, expected, "")
    assert 0.7 < float(ours[1]) < 0.95


@pytest.mark.parametrize("program", GRAPHS)
def test_programs_take_the_images_that_the_package_takes(program):
    read = runner_of(RUNNERS, program).as_rgb
    turned = picture(4, 3)
    turned.getexif()[0x0112] = 6
    images = [picture(5, 4).convert(mode) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK")]
    for image in (turned, *images, Image.new("I", (2, 3), 200), Image.new("I", (2, 3), 999)):
        assert read(image).tobytes() == as_rgb(image).tobytes()
        assert read(image).size == as_rgb(image).size
    with pytest.raises(ValueError, match="floating-point numbers of unknown range"):
        read(Image.new("F", (2, 3)))


def test_a_broken_image_costs_one_line_and_the_others_go_on(simple, tmp_path):
    program, folder = simple
    Image.new("RGB", (9, 7), "white").save(tmp_path / "good.png")
    content = (tmp_path / "good.png").read_bytes()
    (tmp_path / "bad.png").write_bytes(content[:40] + b"\xff" * 9 + content[49:])
    paths = [str(tmp_path / name) for name in ("bad.png", "none.png", "good.png")]
    done = typed(folder, f"{program}.py", *paths)
    assert [row[0] for row in csv.reader(done.stdout.splitlines())] == paths[2:]
    for path, line in zip(paths[:2], done.stderr.splitlines(), strict=True):
        assert line.startswith(f"error: {path}: ")
    assert done.returncode == 1
    assert typed(folder, f"{program}.py", paths[2]).returncode == 0
    command = command_of(folder, f"{program}.py", paths[2])
    assert without_reader(command, b"") == (-signal.SIGPIPE, b"")
    done = typed(folder, f"{program}.py")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith(f"usage: {program}.py [-h] IMAGE")


def test_programs_are_short():
    for program in ("classify.py", "detect.py", "forecast.py"):
        assert len((RUNNERS / program).read_text().splitlines()) < 80


def test_what_draws_samples_is_refused(tmp_path):
    new_forecaster(VanillaAgentFormerConfig(observed_steps=3, d_model=16)).save_pretrained(
        tmp_path / "m"
    )
    with pytest.raises(ValueError, match="VanillaForJointTrajectoryPrediction, which draws"):
        exported(tmp_path / "m")
    wayformer = scene_model("early full", num_agent_kinds=7, reads_sizes=True)
    wayformer.float().save_pretrained(tmp_path / "w")
    with pytest.raises(ValueError, match="num_agent_kinds=7, whose inputs a graph does not take"):
        exported(tmp_path / "w")
    forms = {name for entry in TASKS.values() for name in entry.forms.values()}
    assert set(SAMPLING) < forms


@pytest.mark.release
def test_a_detector_gives_the_same_boxes(tmp_path):
    detection_files.tiny_detector(tmp_path / "detr")
    folder, detector = (
        exported(tmp_path / "detr"),
        load_detector(str(tmp_path / "detr"), device="cpu"),
    )
    theirs = runner_of(folder, "detect").Detector(folder)
    for size in ((120, 70), (50, 91), (64, 64), (300, 20), (64, 95)):
        image = picture(*size)
        (ours,) = detector.detect([image])
        found = theirs.detect(image, threshold=0.0)
        assert [one[0] for one in found] == [detector.label_names[i] for i in ours.labels]
        np.testing.assert_allclose([one[1] for one in found], ours.scores, atol=1e-4)
        np.testing.assert_allclose([one[2:] for one in found], ours.boxes, atol=2e-2)
    image.save(tmp_path / "a.png")
    assert typed(folder, "detect.py", str(tmp_path / "a.png")).returncode == 0
    # padding of a batch, by the mask
    pixels, mask = torch.randn(2, 3, 64, 96), torch.ones(2, 64, 96, dtype=torch.long)
    mask[1, 50:], mask[1, :, 70:] = 0, 0
    with torch.no_grad():
        outputs = detector.model(pixels, mask)
    given = {"pixel_values": pixels.numpy(), "pixel_mask": mask.numpy()}
    for mine, other in zip(
        (outputs.logits, outputs.pred_boxes), theirs.session.run(None, given), strict=True
    ):
        np.testing.assert_allclose(other, mine, atol=1e-4)


@pytest.mark.release
@pytest.mark.parametrize("form", EXPORTED_FORMS)
def test_a_forecaster_gives_the_same_futures(form, tmp_path):
    if form in SCENE_FORMS:
        model = scene_model("early full" if form == "fusion" else form).float()
    elif form == "second":
        sizes = {"observed_steps": 5, "predicted_steps": 3, "d_model": 16}
        config = VanillaAgentFormerConfig(**sizes, connection_distance=2.0)
        config.architectures = [TASKS["joint_trajectories"].forms[form]]
        model = new_forecaster(config).eval()
    else:
        config = VanillaTracksConfig(
            observed_steps=5,
            predicted_steps=3,
            d_model=24,
            encoder_attention_heads=3,
            decoder_attention_heads=2,
            velocity_std=0.4,
        )
        config.architectures = [TASKS["trajectories"].forms[form]]
        model = new_forecaster(config).eval()
    model.save_pretrained(tmp_path / "model")
    folder = exported(tmp_path / "model")
    theirs = runner_of(folder, "forecast").Forecaster(folder)
    for agents in (12, 1, 4):  # 9 others are seen
        past = np.random.default_rng(1).normal(size=(agents, 5, 2)).cumsum(1) + 1000.0
        seen = np.ones((agents, 5), bool)
        seen[agents // 3, :2] = False
        seen[-1, :-1] = False  # no displacement of it is known
        for a, b in zip(predict(model, past, seen), theirs.predict(past, seen), strict=True):
            np.testing.assert_allclose(b, a, atol=1e-3)
    if form == "modes":
        check_forecasts_of_a_table(folder, past, seen, theirs)


@pytest.mark.release
def test_a_model_without_weights_is_exported(tmp_path):
    folder = exported("constant_velocity", output=str(tmp_path / "exported"))
    past = np.arange(16.0).reshape(1, 8, 2)
    futures, _ = runner_of(folder, "forecast").Forecaster(folder).predict(past, past[..., 0] >= 0)
    assert futures[0, 0, :2].tolist() == [[16, 17], [18, 19]]


@pytest.mark.release
def test_each_agent_is_forecast_from_its_own_last_frame(tmp_path):
    """As by `hf-vanilla forecast`: with the others of that frame, also those seen later."""
    model = scene_model("gate").float()
    model.save_pretrained(tmp_path / "model")
    tracks = np.random.default_rng(1).normal(size=(4, 9, 2)).cumsum(1)
    spans = {"left": (0, 5), "stays": (0, 9), "comes": (3, 9), "crosses": (1, 6)}
    rows = [
        (2 * t, agent, *tracks[row, t])
        for row, (agent, span) in enumerate(spans.items())
        for t in range(*span)
    ]
    table = "\n".join(",".join(map(str, row)) for row in [("frame", "agent", "x", "y"), *rows])
    (tmp_path / "tracks.csv").write_text(table)
    scenes = read_tracks(tmp_path / "tracks.csv", TrackSource(frame_seconds=0.2))
    done = typed(exported(tmp_path / "model"), "forecast.py", "2", text=table)
    assert (done.returncode, done.stderr) == (0, "")
    found = {tuple(row[:3]): row[3:] for row in csv.reader(done.stdout.splitlines())}
    expected = [row for part in forecasts(model, scenes) for row in part.to_pylist()]
    assert len(found) == len(expected) == 4 * 4 * 3
    for row in expected:
        values = found[row["agent"], str(row["mode"]), str(row["step"])]
        wanted = [row[name] for name in ("x", "y", "probability")]
        np.testing.assert_allclose(np.array(values, float), wanted, atol=1e-3)


def check_forecasts_of_a_table(folder, past, seen, theirs):
    """Type the program with a table of tracks, then with bad ones."""
    rows = [f"{5 * t},p{a},{past[a, t, 0]},{past[a, t, 1]}" for a, t in np.argwhere(seen)]
    table = "\n".join(["frame,agent,x,y", *rows, ""])
    done = typed(folder, "forecast.py", "5", text=f"\ufeff{table}")  # as spreadsheets write it
    assert (done.returncode, done.stderr) == (0, "")
    assert typed(folder, "forecast.py", text=table).stdout == done.stdout  # frames by 5 are found
    command = command_of(folder, "forecast.py")
    assert without_reader(command, table.encode()) == (-signal.SIGPIPE, b"")
    as_floats = re.sub(r"^(\d+),", r"\1.000,", table, flags=re.MULTILINE)
    assert typed(folder, "forecast.py", text=as_floats).stdout == done.stdout
    tracks, probabilities = theirs.predict(past, seen)
    modes = tracks.shape[1]
    written = [line.split(",") for line in done.stdout.splitlines()]
    assert [row[0] for row in written] == np.repeat(["p0", "p1", "p2", "p3"], modes * 3).tolist()
    np.testing.assert_allclose(
        np.array([row[3:5] for row in written], float), tracks.reshape(-1, 2), atol=1e-4
    )
    np.testing.assert_allclose(
        [float(row[5]) for row in written[::3]], probabilities.ravel(), atol=1e-6
    )
    for text, arguments, message in (
        ("", (), "line 0: ValueError: no column agent, frame, x, y"),
        ("frame,agent,x\n1,a,2\n", (), "line 1: ValueError: no column y"),
        ("frame;agent;x;y\n1;a;2;3\n", (), ".*; commas separate columns"),
        ("frame,agent,x,y\n1,a,2,3\n2,a,much,3\n", (), "line 3: ValueError: .* 'much'"),
        ("frame,agent,x,y\n1,a,2\n", (), "line 2: TypeError"),
        ("frame,agent,x,y\n1,a,2,5,3,5\n", (), "line 2: .*'3', '5'.*; decimals have a point"),
        ("frame,agent,x,y\n0.5,a,2,3\n", (), "line 2: ValueError: .* '0.5'"),
        (table, ("0",), "ValueError: needed: 1 frame per step or more"),
        ("frame,agent,x,y\n1,a,inf,3\n", (), "line 2: .* finite"),
        ("frame,agent,x,y\n1,a,1e200,3\n", (), "line 2: .* below 1e12"),
        (f"{table}0,p0,1,2\n5,p0,1,2\n", (), "line .*: agent p0 is twice in frame .: one scene"),
    ):
        done = typed(folder, "forecast.py", *arguments, text=text)
        assert (done.stdout, done.returncode, done.stderr.count("\n")) == ("", 1, 1)
        assert re.match(f"error: .*{message}", done.stderr)
    done = typed(folder, "forecast.py", "tracks.csv", text=table)  # not a number of frames
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.search("usage: .*\n.*FRAMES_PER_STEP: invalid int value: 'tracks.csv'", done.stderr)
