"""The notebook runs and checks answers; the website builds without warnings and works offline."""

import re
from dataclasses import fields
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag

import jupytext
import nbclient
import nbformat
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import hf_vanilla
from hf_vanilla.recipes.recipe import TrainRecipe

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs/notebooks/the_paper_in_code.py"

# for each exercise, a right and a wrong answer as a student could write them in the notebook
ANSWERS = {
    1: ("2 * math.pi * 10000 ** (510 / 512)", "2 * math.pi * 10000"),
    2: (
        "torch.tensor([[math.cos(5 * omega), math.sin(5 * omega)],"
        " [-math.sin(5 * omega), math.cos(5 * omega)]])",
        "torch.tensor([[math.cos(5 * omega), -math.sin(5 * omega)],"
        " [math.sin(5 * omega), math.cos(5 * omega)]])",
    ),
    3: ("64 ** 0.5", "64"),
    4: ("(1_048_576, 1_048_576)", "(1_048_576, 8 * 1_048_576)"),
    5: ("causal.triu(-2)", "causal"),
    6: (
        "hidden_states + layer.self_attn(*[normalized(hidden_states)] * 3)[0]",
        "normalized(hidden_states + layer.self_attn(*[hidden_states] * 3)[0])",
    ),
    7: ("0.1 * math.log(v - 1) + 0.9 * math.log(1 / 0.9) + 0.1 * math.log(10)", "0"),
    8: ("100 * 2 ** 2", "200"),
    9: ("2 ** 0.6", "7 ** 0.6"),
    10: (
        "max(((n, h) for n in range(2) for h in range(4)), key=lambda place:"
        " outputs.encoder_attentions[place[0]][0, place[1]].diagonal(-1).mean())",
        "(2, 0)",
    ),
}

# --- the notebook ------------------------------------------------------------------------------


def is_exercise(cell):
    return "exercise" in cell.metadata.get("tags", ())


def answered(cell):
    """A copy of an exercise's cell for each answer; an exception does not end the run."""
    number = int(re.search(r"exercise_(\d+) = None", cell.source)[1])
    for answer in ANSWERS[number]:
        source = cell.source.replace(" = None", f" = {answer}", 1)
        tags = {"tags": ["raises-exception"], "answer_to": number}
        yield nbformat.v4.new_code_cell(source, metadata=tags)


@pytest.fixture(scope="module")
def notebook():
    """The executed notebook, with the answers to each exercise after it."""
    notebook = jupytext.read(NOTEBOOK)
    cells = [[c, *answered(c)] if is_exercise(c) else [c] for c in notebook.cells]
    notebook.cells = [cell for group in cells for cell in group]
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=600).execute()
    return notebook


def as_written(notebook):
    """A copy without the answers."""
    cells = [cell for cell in notebook.cells if "answer_to" not in cell.metadata]
    return nbformat.from_dict({**notebook, "cells": cells})


def outcome(cell):
    return [output.get("ename") or output.get("text", "").strip() for output in cell.outputs]


def test_the_notebook_shows_text_and_figures_and_no_warnings(notebook):
    outputs = [o for cell in as_written(notebook).cells for o in cell.get("outputs", ())]
    assert {output.get("name", "picture") for output in outputs} == {"picture", "stdout"}
    assert sum("image/png" in output.get("data", ()) for output in outputs) == 6


def test_an_exercise_without_an_answer_prints_nothing(notebook):
    exercises = [cell for cell in notebook.cells if is_exercise(cell)]
    assert [outcome(cell) for cell in exercises] == [[]] * len(ANSWERS)


@pytest.mark.parametrize("number", ANSWERS)
def test_an_exercise_accepts_the_right_answer_and_rejects_the_wrong_one(notebook, number):
    cells = [cell for cell in notebook.cells if cell.metadata.get("answer_to") == number]
    assert [outcome(cell) for cell in cells] == [["right"], ["AssertionError"]]


# --- the site ----------------------------------------------------------------------------------


class Page(HTMLParser):
    """The anchors of a page, and what a browser loads with it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.loaded = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors.add(given.get("id"))
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(notebook, tmp_path_factory):
    """The folder of the site; as in `make docs`, a broken link or another warning is an error."""
    folder = tmp_path_factory.mktemp("docs")
    nbformat.write(as_written(notebook), folder / "executed.ipynb")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder / "site"), strict=True)
    config.extra["executed_notebook"] = str(folder / "executed.ipynb")
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_a_page_loads_nothing_from_outside(site, pages):
    for path, page in pages.items():
        assert all((path.parent / urldefrag(name)[0]).is_file() for name in page.loaded)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text("utf-8"))


def test_the_reference_has_every_public_name(pages):
    anchors = set().union(*(page.anchors for page in pages.values()))
    assert {f"hf_vanilla.{name}" for name in hf_vanilla.__all__} <= anchors


def test_the_reference_has_the_help_text_of_each_option(site):
    page = (site / "reference/training.html").read_text(encoding="utf-8")
    missing = [
        f.name for f in fields(TrainRecipe) if escape(f.metadata["help"], quote=False) not in page
    ]
    assert not missing


def test_examples_of_docstrings_are_code(pages):
    for path in pages:  # a section "Example:" would become a note; "Examples:" becomes code
        assert 'class="example"' not in path.read_text(encoding="utf-8")


def test_the_page_of_the_notebook_has_its_figures_and_formulas(site, pages):
    page = site / "notebooks/the_paper_in_code.html"
    assert sum(name.startswith("the_paper_in_code_") for name in pages[page].loaded) == 6
    text = page.read_text(encoding="utf-8")
    assert text.count('<math display="block"') == 10
    assert "$$" not in text


def test_the_notebook_to_download_has_no_results(site):
    notebook = nbformat.read(site / "notebooks/the_paper_in_code.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
