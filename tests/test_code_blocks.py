"""Every code block of the README and of docs/ does what a reader is told it does.

A page is read as one session in one folder: its blocks run in order and share files and Python
names. Shell blocks run in bash; what is typed there goes to the real scripts, with smaller numbers
where `reader_commands.RULES` says so and why. Names on the Hub are served by `hub_server.py`.
Nothing is left out but what stands in the tables here and there, and a line of them that
nothing needs fails, too.
"""

import ast
import doctest
import importlib.util
import re
import tomllib
from dataclasses import dataclass, fields

import pytest
import reader_commands
from hub_server import HubServer
from pages import (
    ROOT,
    Block,
    all_commands,
    blocks_of,
    commands_in,
    page_paths,
    shell_text,
    shown_text,
    spoken,
)
from reader import Desk, Reader
from transformers import Seq2SeqTrainingArguments

from hf_vanilla.recipes.recipe import read_recipe

BLOCKS = {path.relative_to(ROOT).as_posix(): blocks_of(path) for path in page_paths()}
ALL_BLOCKS = [block for blocks in BLOCKS.values() for block in blocks]
LAST_LINES = 20  # of what a block prints before it fails


@dataclass(frozen=True)
class Instead:
    """Words of a page that a reader replaces, or that take too long as they stand."""

    find: str
    put: str
    reason: str


@dataclass(frozen=True)
class Declared:
    """A block that is neither run nor compared."""

    page: str
    holds: str
    reason: str


@dataclass(frozen=True)
class Needs:
    """A block for which a library must be there; without it, the block is only compiled."""

    page: str
    holds: str
    library: str


INSTEAD = (
    Instead("USER/NAME", "ada/name", "the reader's account, here that of the stand-in for the Hub"),
    Instead("THIS_MODEL", "runs/demo", "the card's name for the model it belongs to"),
    Instead("max_steps=1000", "max_steps=2", "a thousand steps take minutes"),
)
DECLARED = (
    Declared("model_card.md", "$recipe", "a template, filled by each run"),
    Declared("model_card.md", "$scores", "a template, filled by each run"),
)
NEEDS = (
    Needs("docs/deploy.md", "OnnxExporter", "onnx"),
    Needs("docs/visualization.md", "bertviz", "bertviz"),
)


# --- the pages ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desk(trained_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    with HubServer() as hub, Desk(folder, hub, trained_run) as desk:
        yield desk


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_a_page_does_what_it_says(page, desk, tmp_path):
    printed = ""
    with Reader(desk, tmp_path, BLOCKS[page]) as reader:
        for block in BLOCKS[page]:
            printed, failure = run_block(block, reader, printed)
            told = "\n".join(failure.splitlines()[-LAST_LINES:])
            assert not failure, f"{block.place}\n{block.text}\n{told}"


def run_block(block, reader, before):
    """What a block prints, and what went wrong; `before` is what the block before it printed."""
    if any(entry_fits(entry, block) for entry in DECLARED):
        return before, ""
    if block.language not in RUNNERS:
        return "", f"nothing runs {block.language!r}: teach it to this test, or declare the block"
    return RUNNERS[block.language](block, reader, before)


def compare_text(block, _reader, before):
    return before, difference(block.text, before)


def run_shell(block, reader, _before):
    return reader.type(with_replacements(block.text))


def run_console(block, reader, _before):
    printed, failure = reader.type(with_replacements(shell_text(block)))
    shown = shown_text(block)
    return printed, failure or (shown and difference(shown, printed))


def run_python(block, reader, _before):
    text = with_replacements(block.text)
    if any(entry_fits(need, block) and not is_there(need.library) for need in NEEDS):
        compile(text, block.place, "exec")
        return "", ""
    return reader.execute(text, block)


def read_yaml_block(block, reader, _before):
    """Keep a recipe, whole or in part, under the name that the page gives it, and read it."""
    named = re.match(r"# (\S+\.ya?ml)\n", block.text)
    path = reader.folder / (block.title or (named[1] if named else "block.yaml"))
    path.write_text(block.text, encoding="utf-8")
    try:
        read_recipe(["--recipe", str(path)])
    except (ValueError, OSError) as error:
        return "", str(error)
    return "", ""


RUNNERS = {
    "python": run_python,
    "yaml": read_yaml_block,
    "console": run_console,
    **dict.fromkeys(("bash", "sh", "shell"), run_shell),
    **dict.fromkeys(("", "text", "output"), compare_text),
}


def with_replacements(text):
    for entry in INSTEAD:
        text = text.replace(entry.find, entry.put)
    return text


def entry_fits(entry, block):
    return entry.page == block.page and entry.holds in block.text


def is_there(library):
    return importlib.util.find_spec(library) is not None


def difference(shown, printed):
    """What the page shows and the block before did not print; `...` stands for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if doctest.OutputChecker().check_output(shown, printed, flags):
        return ""
    return f"the page shows\n{shown}\nand this was printed:\n{printed}"


# --- between the blocks --------------------------------------------------------------------------


def inline_code(pattern):
    """What matches in the inline code of all pages, each once, with the page."""
    found = set()
    for path in page_paths():
        text = re.sub(r"^ *(```|~~~).*?^ *\1", "", path.read_text("utf-8"), flags=re.M | re.S)
        for code in re.findall(r"`([^`]+)`", text):
            found |= {(path.name, match) for match in re.findall(pattern, " ".join(code.split()))}
    return sorted(found)


def known_options():
    """Fields of every class of options here, and those of the `Trainer`."""
    sources = [*(ROOT / "hf_vanilla").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    nodes = [n for path in sources for n in ast.walk(ast.parse(path.read_text("utf-8")))]
    classes = [n for n in nodes if isinstance(n, ast.ClassDef)]
    own = {
        line.target.id
        for found in classes
        if found.name.endswith(("Options", "TrainRecipe"))
        for line in found.body
        if isinstance(line, ast.AnnAssign)
    }
    return own | {option.name for option in fields(Seq2SeqTrainingArguments)}


OURS_TO_TELL = r"^(?:python )?(?:scripts/\S+ .*|--.*)$"


def test_every_option_in_the_text_is_there():
    known = known_options() | {"format", "help", "recipe"}
    told = [
        (page, option)
        for page, command in inline_code(OURS_TO_TELL)
        for option in re.findall(r"--(\w+)(?![\w.])", command)
    ]
    assert len(told) > 20
    assert not [(page, option) for page, option in told if option not in known]


def test_every_file_of_ours_in_the_text_is_there():
    named = inline_code(r"(?<![\w./])(?:scripts|tests|docs|hf_vanilla)/[\w./]*\w")
    assert len(named) > 30
    assert not [(page, name) for page, name in named if not (ROOT / name).exists()]


def test_every_extra_in_the_text_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = inline_code(r"(?:\.|hf-vanilla)\[([\w,]+)\]")
    assert len(named) > 3
    extras = {(page, extra) for page, extras in named for extra in extras.split(",")}
    assert {extra for _, extra in extras} <= set(project["optional-dependencies"])


# --- the tables ---------------------------------------------------------------------------------


def test_every_page_is_read():
    assert {"README.md", "docs/convert.md", "docs/training.md"} <= BLOCKS.keys()
    assert len(ALL_BLOCKS) > 25


@pytest.mark.parametrize("entry", INSTEAD, ids=lambda entry: entry.find)
def test_every_replacement_is_needed(entry):
    assert any(entry.find in block.text for block in ALL_BLOCKS)


@pytest.mark.parametrize("entry", [*DECLARED, *NEEDS], ids=lambda entry: entry.holds)
def test_every_exception_is_needed(entry):
    assert len([block for block in ALL_BLOCKS if entry_fits(entry, block)]) == 1


@pytest.mark.parametrize("rule", reader_commands.RULES, ids=lambda rule: rule.begins)
def test_every_rule_is_needed(rule):
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    typed = "\n".join(re.findall(r"\$\(BIN\)/.+", make)).replace("$(BIN)/", "")
    commands = [*all_commands(ALL_BLOCKS), *map(spoken, commands_in(typed))]
    assert any(rule.names(command) for command in commands)


# --- the test itself ----------------------------------------------------------------------------

PAGE = """\
Text.

- a list

  ```bash
  python3 scripts/train.py --recipe \\
    A.yaml > log 2>&1   # a comment
  X=1 .venv/bin/pip install "a b" && echo 'two
  lines' | cat
  ```

~~~~{.python title="a.py"}
```
~~~~
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr("pages.ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_blocks_are_found_with_their_place_and_language(page):
    shell, python = blocks_of(page)
    assert (shell.place, shell.language) == ("page.md:6", "bash")
    assert shell.text.startswith("python3 scripts")
    assert python == Block("page.md", 13, "python", "a.py", "```\n")


def test_a_fence_that_is_never_closed_is_told(page):
    page.write_text(PAGE + "```\nend", encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md:15: this fence is never closed"):
        blocks_of(page)


def test_commands_are_named_as_the_table_names_them(page):
    assert all_commands(blocks_of(page)) == [
        "scripts/train.py --recipe A.yaml 2",
        "pip install a b",
        "echo two\nlines",
        "cat",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "text", "told"),
    [
        ("bash", "unheard of", "no rule of tests/reader_commands.py says what this does"),
        ("bash", "python scripts/train.py --max_stepz 3", "did you mean --max_steps?"),
        ("bash", "python scripts/nothing.py", "scripts/nothing.py"),
        ("bash", "false | cat\ntrue", "exit status 1"),
        ("bash", "pip install '.[nothing]'", "no extra called {'nothing'}"),
        ("python", "x = 1\nx / 0", 'README.md", line 8'),
        ("console", "$ echo one\ntwo", "the page shows\ntwo"),
        ("text", "one more", "the page shows\none more"),
        ("yaml", "max_stepz: 3", "did you mean 'max_steps'?"),
        ("brainfuck", "+", "nothing runs 'brainfuck'"),
    ],
    ids=lambda value: value.split("\n")[0],
)
def test_what_does_not_work_fails(language, text, told, desk, tmp_path):
    block = Block("README.md", 7, language, "", text + "\n")
    with Reader(desk, tmp_path, [block]) as reader:
        _, failure = run_block(block, reader, "one")
    assert told in failure
