"""Classify files and folders of images, from the command line."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

from hf_vanilla.data.image_models import (
    FileResult,
    ImageRequest,
    check_paths,
    image_paths,
    output_file,
    read_image_request,
    reported,
)
from hf_vanilla.options import Options, option

from .classifier import Guess, load_classifier

FORMATS = ("csv", "jsonl")


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(Options):
    """Classify the images of PATHS: files, folders, or - for paths from stdin."""

    model: str = option(text="model folder or Hub id")
    output: str | None = option(None, "file to write; default: stdout")
    format: str = option("csv", f"one of {', '.join(FORMATS)}", choices=FORMATS)
    top_k: int = option(5, "labels of each image", at_least=1)
    batch_size: int = option(32, "images at a time", at_least=1)
    device: str | None = option(None, "such as cpu; default: a GPU if there is one")
    stop_at_unreadable: bool = option(
        False, "end at the first unreadable image instead of reporting it"
    )


def read_classification(arguments: Sequence[str]) -> ImageRequest:
    """Options and paths of a command line."""
    return read_image_request(arguments, ClassifyOptions)


def classify_files(request: ImageRequest) -> None:
    """Write one line for each image, in the order of the paths; folders by sorted names.

    Raises:
        ValueError: the model is another, or an image is unreadable and the options say to stop.
        OSError: a path does not exist, or the output cannot be written.
    """
    options = request.options
    check_paths(request.paths)
    classifier = load_classifier(options.model, device=options.device)
    top_k = min(options.top_k, classifier.model.config.num_labels)
    results = classifier.classify(
        image_paths(request.paths), top_k=top_k, batch_size=options.batch_size
    )
    with output_file(options.output) as file:
        if options.format == "csv":
            names = [f"{name}_{rank}" for rank in range(1, top_k + 1) for name in ("label", "p")]
            file.write(_csv_line(["path", *names, "error"]) + "\n")
        for result in reported(results, stops=options.stop_at_unreadable):
            file.write(line_of(result, options.format, top_k) + "\n")


def line_of(result: FileResult[tuple[Guess, ...]], form: str, top_k: int) -> str:
    """One result as a line of CSV or JSON, without its end."""
    if form == "jsonl":
        guesses = [vars(guess) for guess in result.result or ()]
        entry = {"path": result.name, "labels": guesses}
        return json.dumps(entry | ({"error": result.error} if result.error else {}))
    cells: list[str] = [result.name]
    for guess in result.result or ():
        cells += [guess.label, f"{guess.probability:.6f}"]
    cells += [""] * (1 + 2 * top_k - len(cells))
    return _csv_line([*cells, result.error or ""])


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
