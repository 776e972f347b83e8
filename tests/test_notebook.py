"""The notebook runs, shows its figures, and accepts right answers to its exercises only."""

import re
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

# `make docs` executes the notebook too
pytestmark = pytest.mark.release

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs/notebooks/the_paper_in_code.py"

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
    """What a cell printed, if anything, and the name of the error that it raised."""
    # the kernel may send what a cell prints in several parts
    printed = "".join(output.get("text", "") for output in cell.outputs).strip()
    return [*filter(None, [printed]), *(o["ename"] for o in cell.outputs if "ename" in o)]


def test_the_notebook_shows_text_and_figures_and_no_warnings(notebook):
    outputs = [o for cell in as_written(notebook).cells for o in cell.get("outputs", ())]
    assert {output.get("name", "picture") for output in outputs} == {"picture", "stdout"}
    assert sum("image/png" in output.get("data", ()) for output in outputs) == 6
    interactive = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", ())]
    tables = [2 * (4 + 1), 4 * (4 + 1)]  # layers of both models, and heads with their mean
    assert [text.count("<table>") for text in interactive] == tables
    groups = [re.findall('<details name="(.*?)"', text) for text in interactive]
    assert set(groups[0]).isdisjoint(groups[1])  # else a table closes those of another output
    assert not any(part in text for part in ("<script", "http") for text in interactive)


def test_an_exercise_without_an_answer_prints_nothing(notebook):
    exercises = [cell for cell in notebook.cells if is_exercise(cell)]
    assert [outcome(cell) for cell in exercises] == [[]] * len(ANSWERS)


@pytest.mark.parametrize("number", ANSWERS)
def test_an_exercise_accepts_the_right_answer_and_rejects_the_wrong_one(notebook, number):
    cells = [cell for cell in notebook.cells if cell.metadata.get("answer_to") == number]
    assert [outcome(cell) for cell in cells] == [["right"], ["AssertionError"]]
