"""Damaged files for every reader of user data.

Each reader gets INPUTS variants of a good file: values are replaced, left out or repeated, or
bytes are changed. It may accept one, or refuse it by an error that a command prints in one line;
any other exception, and more than ten seconds for an input, is printed, and the exit status is 1.
"""

import argparse
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml
from huggingface_hub.errors import StrictDataclassError
from PIL import Image

from hf_vanilla import (
    VanillaAgentFormerConfig,
    VanillaForJointTrajectoryPrediction,
    VanillaForMultimodalTrajectoryPrediction,
    VanillaTracksConfig,
    demo_model,
)
from hf_vanilla.convert.agentformer import first_stage_fields, second_stage_fields
from hf_vanilla.convert.marian_npz import decoder_settings
from hf_vanilla.data.images import open_image
from hf_vanilla.file_values import read_yaml
from hf_vanilla.objects.sources import load_detection_images, read_coco
from hf_vanilla.text.alignments import saved_head
from hf_vanilla.text.encoding import read_prepared
from hf_vanilla.text.loading import load_translator
from hf_vanilla.tracks.forecaster import load_forecaster
from hf_vanilla.tracks.formats import TrackSource, read_tracks
from hf_vanilla.training.recipe import read_recipe
from hf_vanilla.training.sweep import read_sweep

REFUSALS = (ValueError, OSError, ImportError, StrictDataclassError)
ODD_BYTES = b'{}[]",:-&*09x\xff\0\n'
SECONDS = 10  # for one input
ODD: list[Any] = [None, True, -1, 0, 2**63, 10**30, 1e308, float("nan"), "", "x", "\0", "../../x"]
ODD += [[], [None], [[1, 2]], {}, {"id": 1}, {"a": {"b": [1]}}, "9" * 50, [10**9] * 3, 10**6]
YOLO_NAMES, YOLO_LABELS = {"names": ["a", "b"], "nc": 2}, b"0 .5 .5 .2 .2\n1 .1 .2 .3 .4\n"
BOX = {"bbox": [[1, 2, 3, 4]], "categories": [0]}
COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 20, "width": 30}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 2, "bbox": [1, 2, 3, 4], "area": 9, "iscrowd": 0}
    ],
    "categories": [{"id": 2, "name": "dog"}, {"id": 3, "name": "cat"}],
}
PREPARED = {"format": 1, "pairs": 9, "pairs_per_shard": 4, "corpus": "a", "tokenizer": "b"}
ALIGNMENT = {"best": {"layer": 1, "head": 0, "is_next": True}, "data": "x", "measured": []}
AGENTFORMER = {
    "past_frames": 8,
    "future_frames": 12,
    "tf_model_dim": 16,
    "tf_ff_dim": 20,
    "tf_nhead": 4,
    "tf_dropout": 0.1,
    "nz": 4,
    "sample_k": 3,
    "input_type": ["scene_norm", "vel"],
    "pred_type": "scene_norm",
    "sn_out_type": "norm",
    "learn_prior": True,
    "pos_concat": True,
    "qnet_mlp": [8, 4],
    "future_encoder": {"nlayer": 2, "out_mlp_dim": [8]},
    "future_decoder": {"nlayer": 2, "out_mlp_dim": [8]},
    "context_encoder": {"nlayer": 2},
    "loss_cfg": {"kld": {"weight": 1, "min_clip": 2.0}, "sample": {"weight": 1}},
}
RECIPE = {
    "max_steps": 10,
    "output_dir": "out",
    "learning_rate": 0.1,
    "model": {"d_model": 16, "encoder_layers": 1},
    "decoding": {"num_beams": 4},
}
SWEEP = {
    "title": "x",
    "output_dir": "out",
    "seeds": [0, 1],
    "options": {"max_steps": 10},
    "runs": {"a": {"learning_rate": 0.1, "published": 27.3}, "b": {"warmup_steps": 5}},
}
DECODER = {"models": ["model.npz"], "vocabs": ["a.yml"], "beam-size": 4, "normalize": 1.0}
TRACKS = {"frame": [0, 1, 2], "agent": [1, 1, 1], "x": [0.0, 1.0, 2.0], "y": [0.0, 0.5, 1.0]}


def changed(content: Any, draw: random.Random) -> Any:
    """A copy with one to three values replaced, left out or repeated, at any depth."""
    content = copy.deepcopy(content)
    for _ in range(draw.randint(1, 3)):
        places = _places(content)
        if not places:
            break
        inside, key = draw.choice(places)
        action = draw.choice(("replace", "replace", "remove", "repeat"))
        if action == "replace":
            inside[key] = copy.deepcopy(draw.choice(ODD))
        elif action == "remove":
            del inside[key]
        else:
            value = copy.deepcopy(inside[key])
            inside.append(value) if isinstance(inside, list) else inside.update({"extra": value})
    return content


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Each value of nested lists and dicts, as its container and its key there."""
    if not isinstance(content, dict | list):
        return []
    keys = list(content) if isinstance(content, dict) else range(len(content))
    inside = [place for key in keys for place in _places(content[key])]
    return [(content, key) for key in keys] + inside


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes cut off, or with some of them changed or repeated."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data) + 1)
        data[place : place + draw.randint(0, 3)] = bytes(draw.choices(ODD_BYTES, k=2))
    return bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.2 else data)


@dataclass(frozen=True)
class Case:
    """A reader of one file.

    Attributes:
        file: below the folder of all files.
        content: of a good file; bytes are changed as such.
        read: reads the file.
        text: from content to the text of the file.
    """

    file: str
    content: Any
    read: Callable[[Path], Any]
    text: Callable[[Any], str] = json.dumps

    def try_variant(self, root: Path, draw: random.Random) -> None:
        """Write one variant, read it, and put the good file back."""
        path = root / self.file
        is_bytes = isinstance(self.content, bytes)
        good = self.content if is_bytes else self.text(self.content).encode()
        if is_bytes or draw.random() < 0.3:
            path.write_bytes(damaged(good, draw))
        else:
            text = self.text(changed(self.content, draw))
            path.write_text(text, encoding="utf-8", errors="replace")
        try:
            self.read(path)
        finally:
            path.write_bytes(good)


def write_good_files(root: Path) -> None:
    """Images, and model folders of the three kinds of config."""
    for name in ("coco", "meta", "yolo/images", "yolo/labels", "text", "tracks", "joint"):
        (root / name).mkdir(parents=True)
    for name in ("coco", "meta", "yolo/images"):
        Image.new("RGB", (30, 20)).save(root / name / "a.png")
    (root / "yolo" / "labels" / "a.txt").write_bytes(YOLO_LABELS)
    (root / "yolo" / "data.yaml").write_text(yaml.safe_dump(YOLO_NAMES))
    shutil.copytree(demo_model(), root / "text", dirs_exist_ok=True)
    sizes = {"d_model": 16, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
    tracks = VanillaForMultimodalTrajectoryPrediction(VanillaTracksConfig(**sizes))
    tracks.save_pretrained(root / "tracks")
    joint = VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(**sizes))
    joint.save_pretrained(root / "joint")


def cases(root: Path) -> dict[str, Case]:
    """By name, every reader with a good file."""
    dump, record = yaml.safe_dump, {"file_name": "a.png", "objects": BOX}

    def content(file: str) -> Any:
        return json.loads((root / file).read_text())

    return {
        "COCO": Case("coco/boxes.json", COCO, read_coco),
        "metadata.jsonl": Case("meta/metadata.jsonl", record, read_boxes),
        "YOLO names": Case("yolo/data.yaml", YOLO_NAMES, read_boxes, dump),
        "YOLO labels": Case("yolo/labels/a.txt", YOLO_LABELS, lambda p: read_boxes(p.parent)),
        "image": Case("coco/b.png", (root / "coco" / "a.png").read_bytes(), open_image),
        "Parquet": Case("tracks.json", TRACKS, read_as_parquet),
        "prepared.json": Case("prepared.json", PREPARED, lambda p: read_prepared(p.parent)),
        "alignment.json": Case("alignment.json", ALIGNMENT, lambda p: saved_head(p.parent)),
        "AgentFormer": Case("agentformer.yml", AGENTFORMER, read_agentformer, dump),
        "recipe": Case("r.yaml", RECIPE, lambda p: read_recipe(["--recipe", str(p)]), dump),
        "sweep": Case("s.yaml", SWEEP, read_sweep, dump),
        "decoder.yml": Case("decoder.yml", DECODER, lambda p: decoder_settings(p.parent), dump),
        "text": Case("text/config.json", content("text/config.json"), read_translator),
        "tracks": Case("tracks/config.json", content("tracks/config.json"), read_forecaster),
        "joint": Case("joint/config.json", content("joint/config.json"), read_forecaster),
        "tokenizer": Case("text/tokenizer.json", content("text/tokenizer.json"), read_translator),
    }


def read_boxes(path: Path) -> Any:
    """The folder of a file of annotations."""
    return load_detection_images(str(path.parent))


def read_as_parquet(path: Path) -> Any:
    """Columns of JSON as a Parquet file, and its tracks; None where Parquet cannot hold them."""
    content = json.loads(path.read_text())
    columns = {}
    for name, values in content.items():  # a column has one type: that of its first odd value
        values = values if isinstance(values, list) else [values]
        odd = [value for value in values if type(value) not in (int, float)]
        columns[name] = odd[:1] * 3 or values
    try:
        pyarrow.parquet.write_table(pyarrow.table(columns), "t.parquet")
    except (pyarrow.ArrowException, OverflowError):
        return None
    return read_tracks("t.parquet", TrackSource(frame_seconds=0.4))


def read_agentformer(path: Path) -> VanillaAgentFormerConfig:
    """Config of both stages from one YAML file."""
    settings = read_yaml(path)
    fields = first_stage_fields(settings, origin=str(path)) | second_stage_fields(settings)
    return VanillaAgentFormerConfig(**fields)


def read_translator(path: Path) -> Any:
    """The translator in the folder of a file."""
    return load_translator(str(path.parent))


def read_forecaster(path: Path) -> Any:
    """The forecaster in the folder of a file."""
    return load_forecaster(str(path.parent), device="cpu")


def outcome_of(case: Case, root: Path, draw: random.Random) -> str:
    """`accepted`, `refused`, or what a user would see as a traceback or a hang."""
    signal.alarm(SECONDS)
    try:
        case.try_variant(root, draw)
    except TimeoutError as error:
        return str(error)
    except REFUSALS:
        return "refused"
    except Exception:
        return traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)
    return "accepted"


def main(inputs: int, seed: int) -> int:
    """Run all readers; returns the exit status."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.chdir(root)
        write_good_files(root)
        for reader, case in cases(root).items():
            draw = random.Random(f"{reader} {seed}")
            outcomes = Counter(outcome_of(case, root, draw) for _ in range(inputs))
            wrong = [outcome for outcome in outcomes if outcome not in ("accepted", "refused")]
            counts = {key: outcomes[key] for key in ("accepted", "refused")}
            faults += sum(outcomes[outcome] for outcome in wrong)
            print(reader, counts, *wrong, sep="\n" if wrong else " ", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Give damaged files to the readers of user data.")
    parser.add_argument("inputs", type=int, nargs="?", default=100, help="files for each reader")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    options = parser.parse_args()
    if options.inputs < 1:
        parser.error(f"inputs={options.inputs}: give 1 or more")
    sys.exit(main(options.inputs, options.seed))
