"""Find objects with ONNX Runtime; needs numpy, onnxruntime and pillow, nothing else.

python detect.py IMAGE ... > objects.csv
detect.Detector("FOLDER").detect(PIL.Image.open("a.png"), threshold=0.7)
"""

import argparse
import csv
import json
import signal
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from PIL import Image, ImageOps


class Detector:
    """The model of a folder; `labels` are its classes."""

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        self.settings = json.loads((Path(folder) / "preprocessor_config.json").read_text("utf-8"))
        names = json.loads((Path(folder) / "config.json").read_text("utf-8"))["id2label"]
        self.labels = [names[str(index)] for index in range(len(names))]
        self.session = InferenceSession(Path(folder) / "model.onnx")

    def pixels(self, image: Image.Image) -> np.ndarray:
        """`(1, 3, H, W)` float32 of an RGB image: resized as in training, scaled, normalized."""
        settings, size, (short, long) = self.settings, self.settings["size"], sorted(image.size)
        edge = min(size["shortest_edge"], size["longest_edge"] * short / long)
        sides = (short, long) if round(edge) == short else (round(edge), int(edge * long / short))
        width, height = sides if image.width == short else sides[::-1]
        image = image.resize((max(1, width), max(1, height)), settings["resample"])
        values = np.asarray(image, np.float32) * np.float32(settings["rescale_factor"])
        mean, deviation = (np.array(settings[n], np.float32) for n in ("image_mean", "image_std"))
        return ((values - mean) / deviation).transpose(2, 0, 1)[None]

    def detect(self, image: Image.Image, threshold: float = 0.7) -> list[tuple]:
        """Label, score, left, top, right and bottom in pixels of each object, the surest first."""
        pixels = self.pixels(image := as_rgb(image))
        mask = np.ones((1, *pixels.shape[2:]), np.int64)  # 0 where a batch has padding
        logits, boxes = self.session.run(None, {"pixel_values": pixels, "pixel_mask": mask})
        weights = np.exp(logits[0] - logits[0].max(1, keepdims=True))
        scores = (weights / weights.sum(1, keepdims=True))[:, :-1]  # the last class: no object
        middle, half = boxes[0, :, :2], boxes[0, :, 2:] / 2
        corners = np.hstack((middle - half, middle + half)) * (image.size * 2)
        order = np.argsort(-scores.max(1), kind="stable")[: (scores.max(1) >= threshold).sum()]
        rows = zip(scores[order], corners[order], strict=True)
        return [(self.labels[of.argmax()], float(of.max()), *box) for of, box in rows]


def as_rgb(image: Image.Image) -> Image.Image:
    """An image in three channels of 8 bits, turned as its EXIF data says."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # Pillow would clip 16 bits at 255
        wide = np.asarray(image).astype(np.float32)
        scale = 255 / 65535 if wide.max(initial=0) > 255 or ";16" in image.mode else 1
        image = Image.fromarray(np.rint(wide * scale).clip(0, 255).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write path, label, score and box of objects.")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    paths, is_bad = parser.parse_args().images, False
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a TextIOWrapper
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)  # if head closes it
    detector, write = Detector(), csv.writer(sys.stdout, lineterminator="\n").writerow
    for path in paths:
        try:
            for label, score, *box in detector.detect(Image.open(path)):
                write((path, label, f"{score:.4f}", *(f"{side:.1f}" for side in box)))
        except Exception as error:  # a damaged file fails in many ways
            print(f"error: {path}: {error}", file=sys.stderr)
            is_bad = True
    sys.exit(is_bad)
