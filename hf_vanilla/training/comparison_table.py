"""A table of results as Markdown, LaTeX, CSV or JSON."""

import csv
import io
import json
from dataclasses import dataclass

SUFFIXES = (".md", ".tex", ".csv", ".json")
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


@dataclass(frozen=True)
class Table:
    """Cells as text, and what the numbers are.

    Attributes:
        head: names of the columns.
        rows: cells of each row.
        notes: sentences below the table.
    """

    head: list[str]
    rows: list[list[str]]
    notes: list[str]


def table_text(table: Table, suffix: str) -> str:
    """The table as a file of this suffix, one of `SUFFIXES`; CSV has no notes."""
    lines = [table.head, *table.rows]
    if suffix == ".csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(lines)
        return file.getvalue()
    if suffix == ".json":
        records = [dict(zip(table.head, row, strict=True)) for row in table.rows]
        return (
            json.dumps({"rows": records, "notes": table.notes}, indent=1, ensure_ascii=False) + "\n"
        )
    if suffix == ".tex":
        head, *rows = [" & ".join(cell.translate(LATEX) for cell in row) + r" \\" for row in lines]
        columns = "l" + "r" * (len(table.head) - 1)
        begin = [*(f"% {note}" for note in table.notes), rf"\begin{{tabular}}{{{columns}}}"]
        return "\n".join(
            [*begin, r"\hline", head, r"\hline", *rows, r"\hline", r"\end{tabular}", ""]
        )
    head, *rows = ["| " + " | ".join(row) + " |" for row in lines]
    return "\n".join([head, "|" + "---|" * len(table.head), *rows, "", *table.notes, ""])
