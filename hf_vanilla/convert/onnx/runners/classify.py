"""Label images with ONNX Runtime; needs numpy, onnxruntime and pillow, nothing else.

python classify.py IMAGE ... > labels.csv
classify.Classifier("FOLDER").probabilities([PIL.Image.open("a.png")])
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


class Classifier:
    """The model of a folder; `labels` are its classes."""

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        self.settings = json.loads(Path(folder, "preprocessor_config.json").read_bytes())
        config = json.loads(Path(folder, "config.json").read_bytes())
        self.labels = [config["id2label"][str(n)] for n in range(len(config["id2label"]))]
        self.is_multi_label = len(self.labels) == 1 or "multi" in (config.get("problem_type") or "")
        self.session = InferenceSession(Path(folder, "model.onnx"))

    def pixels(self, image: Image.Image) -> np.ndarray:
        """`(3, H, W)` float32: in the model's size or cut to it, scaled and normalized."""
        settings, size, image = self.settings, self.settings["size"], as_rgb(image)
        width, height = size.get("width"), size.get("height")
        if edge := size.get("shortest_edge"):  # the aspect is kept
            width, height = (int(edge * side / min(image.size)) for side in image.size)
        image = image.resize((width, height), settings["resample"])
        if settings.get("do_center_crop"):
            cut = settings["crop_size"]
            left, top = (width - cut["width"]) // 2, (height - cut["height"]) // 2
            image = image.crop((left, top, left + cut["width"], top + cut["height"]))
        values = np.asarray(image, np.float32) * np.float32(settings["rescale_factor"])
        mean, deviation = (np.array(settings[n], np.float32) for n in ("image_mean", "image_std"))
        return ((values - mean) / deviation).transpose(2, 0, 1)

    def probabilities(self, images: list[Image.Image]) -> np.ndarray:
        """`(B, C)`: a row for each image; they sum to 1 where an image has one of the labels."""
        (logits,) = self.session.run(None, {"pixel_values": np.stack([*map(self.pixels, images)])})
        if self.is_multi_label:
            return 1 / (1 + np.exp(-logits))
        weights = np.exp(logits - logits.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)


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
    parser = argparse.ArgumentParser(description="Write path, label and probability of images.")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    paths, is_bad = parser.parse_args().images, False
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a TextIOWrapper
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)  # if head closes it
    classifier, write = Classifier(), csv.writer(sys.stdout, lineterminator="\n").writerow
    for path in paths:
        try:
            probabilities = classifier.probabilities([Image.open(path)])[0]
            write((path, classifier.labels[probabilities.argmax()], f"{probabilities.max():.4f}"))
        except Exception as error:  # a damaged file fails in many ways
            print(f"error: {path}: {error}", file=sys.stderr)
            is_bad = True
    sys.exit(is_bad)
