"""The floors, the passports and the walls of the house, read from the source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hf_vanilla"
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))

# a file imports only from floors below its own; on one floor, only along these arrows
FLOORS = [
    {"configuration_vanilla": (), "inputs_vanilla": ("configuration_vanilla",)},
    {
        "positions_vanilla": (),
        "attention_vanilla": (),
        "dropout_vanilla": (),
        "loss_vanilla": (),
        "generation_vanilla": (),
        "cache_vanilla": (),
    },
    {"layers_vanilla": ()},
    {
        "stacks_vanilla": (),
        "decoding_vanilla": ("stacks_vanilla",),
        "search_vanilla": ("decoding_vanilla",),
        "fast_search_vanilla": ("decoding_vanilla", "search_vanilla", "stacks_vanilla"),
        "modeling_vanilla": ("fast_search_vanilla", "pipeline_vanilla", "stacks_vanilla"),
        "halves_vanilla": ("stacks_vanilla",),
        "tokenization_vanilla": (),
        "tokenization_fairseq_vanilla": (),
        "saving_vanilla": ("tokenization_fairseq_vanilla",),
        "pipeline_vanilla": ("saving_vanilla",),
    },
    {},  # heads, later
    {
        "corpus": (),
        "tokenizer_training": ("corpus",),
        "shuffling": (),
        "batching": ("shuffling",),
        "streaming": ("batching",),
    },
    {
        "engines": (),
        "hypotheses": (),
        "translation": ("engines",),
        "shards": ("translation",),
        "corpus_translation": ("shards", "translation"),
        "evaluation": ("translation",),
        "attentions": (),
        "pictures": (),
        "visualization": ("attentions", "pictures", "translation"),
        "length_bleu": ("evaluation", "pictures", "translation"),
        "hub": ("evaluation", "translation"),
        "optimization": (),
        "options": (),
        "checkpointing": (),
    },
    {
        "recipe": (),
        "validation": (),
        "processes": ("recipe",),
        "preparation": ("recipe",),
        "telemetry": ("processes", "recipe"),
        "stepping": ("recipe", "validation"),
        "curves": ("telemetry",),
        "formula_pictures": ("recipe",),
        "plot": ("curves", "formula_pictures"),
        "training": (
            "curves",
            "preparation",
            "processes",
            "recipe",
            "stepping",
            "telemetry",
            "validation",
        ),
        "finetuning": ("validation",),
        "parameter_table": ("recipe",),
        "answers": (),
        "attention_page": (),
        "space": (),
        "app": ("answers", "attention_page", "recipe", "space", "training"),
        "convert/renaming": (),
        "convert/reading": (),
        "convert/fairseq_settings": ("convert/renaming",),
        "convert/fairseq_tokenizer": (),
        "convert/fairseq": (
            "convert/fairseq_settings",
            "convert/fairseq_tokenizer",
            "convert/reading",
            "convert/renaming",
        ),
        "convert/marian": ("convert/renaming",),
        "convert/to_marian": ("convert/marian", "convert/renaming"),
        "convert/ctranslate2": ("convert/renaming",),
        "convert/torch_transformer": ("convert/reading", "convert/renaming"),
        "convert/formats": (
            "convert/fairseq",
            "convert/marian",
            "convert/to_marian",
            "convert/torch_transformer",
        ),
    },
    {
        "commands": (),
        "command_line": ("commands",),
        "__init__": (),
        "__main__": ("commands",),
    },
]
FLOOR_OF = {name: number for number, floor in enumerate(FLOORS) for name in floor}
ARROWS = {name: arrows for floor in FLOORS for name, arrows in floor.items()}

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py" or path.parent == PACKAGE
}
TRAVELERS = [name for name in MODULES if name.endswith("_vanilla")]
PORTABLE = {"torch", "transformers", "tokenizers", "huggingface_hub", *sys.stdlib_module_names}

LONGEST_FILE, LONGEST_FUNCTION, LONGEST_SCRIPT = 500, 60, 60


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path):
    """Every import statement at any depth: `(level, module, names)`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []


def ours(path):
    """Names of our own modules that a file imports, `convert/renaming` for one in a folder."""
    found = {module for level, module, _ in imports_of(path) if level}
    if path.parent != PACKAGE:  # inside a folder, siblings by one dot and the floors below by name
        found = {f"{path.parent.name}/{module}" for module in found}
    for level, module, _ in imports_of(path):
        if not level and module.startswith("hf_vanilla."):
            found.add(module.removeprefix("hf_vanilla."))
    return sorted(name.replace(".", "/") for name in found)


def committed_files():
    """What git knows, and what it would take up next."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines()
    if not names:  # an archive without history
        kinds = ("hf_vanilla", "scripts", "tests")
        names = [p.relative_to(ROOT).as_posix() for kind in kinds for p in (ROOT / kind).rglob("*")]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


# --- floors ------------------------------------------------------------------------------------


def test_every_file_stands_on_exactly_one_floor():
    assert sum(len(floor) for floor in FLOORS) == len(FLOOR_OF)
    assert set(FLOOR_OF) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_file_imports_only_from_below_or_along_an_arrow(name):
    for imported in ours(MODULES[name]):
        assert FLOOR_OF[imported] < FLOOR_OF[name] or imported in ARROWS[name], (
            f"{name} (floor {FLOOR_OF[name]}) imports {imported} (floor {FLOOR_OF[imported]})"
        )


def test_every_arrow_is_used():
    unused = [
        (name, arrow)
        for name, arrows in ARROWS.items()
        for arrow in arrows
        if arrow not in ours(MODULES[name])
    ]
    assert not unused


def test_imports_make_no_circle():
    waiting = {name: set(ours(path)) for name, path in MODULES.items()}
    while ready := {name for name, needs in waiting.items() if not needs & waiting.keys()}:
        waiting = {name: needs for name, needs in waiting.items() if name not in ready}
    assert not waiting


@pytest.mark.parametrize("name", MODULES)
def test_nobody_inside_imports_the_door(name):
    for level, module, names in imports_of(MODULES[name]):
        is_own = module.split(".")[0] == "hf_vanilla"
        assert level or not is_own or ("/" in name and "." in module)  # a folder names its house
        assert not level or module  # `from . import name` goes through the door
        assert "__init__" not in (module, *names)
        assert level <= 1


def test_nothing_imports_the_scripts():
    for path in committed_files():
        if path.suffix == ".py":
            assert all(module.split(".")[0] != "scripts" for _, module, _ in imports_of(path))


def test_importing_the_package_brings_the_model_and_nothing_else():
    code = "import sys, hf_vanilla; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    own = {name.removeprefix("hf_vanilla.") for name in loaded if name.startswith("hf_vanilla.")}
    assert own <= set(TRAVELERS)
    assert "datasets" not in loaded  # half a second, for those who train only


# --- passports ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAVELERS)
def test_a_traveler_imports_things_from_travelers_only(name):
    for level, module, names in imports_of(MODULES[name]):
        if level:
            assert level == 1
            assert module in TRAVELERS
            assert "*" not in names


@pytest.mark.parametrize("name", TRAVELERS)
def test_a_traveler_needs_only_libraries_that_are_there_where_it_arrives(name):
    for level, module, _ in imports_of(MODULES[name]):
        assert level or module.split(".")[0] in PORTABLE


@pytest.mark.parametrize("name", TRAVELERS)
def test_no_line_of_a_travelers_text_looks_like_an_import_to_transformers(name):
    # transformers finds relative imports by these expressions, in docstrings and comments too
    text = MODULES[name].read_text(encoding="utf-8")
    seen = re.findall(r"^\s*import\s+\.(\S+)\s*$", text, flags=re.MULTILINE)
    seen += re.findall(r"^\s*from\s+\.(\S+)\s+import", text, flags=re.MULTILINE)
    assert sorted(set(seen)) == ours(MODULES[name])


@pytest.mark.parametrize("name", TRAVELERS)
def test_a_traveler_carries_its_licence(name):
    first = MODULES[name].read_text(encoding="utf-8").splitlines()[0]
    assert "SPDX-License-Identifier: Apache-2.0" in first


# --- mirror ------------------------------------------------------------------------------------


DOORS = ("__init__", "__main__")


@pytest.mark.parametrize("name", [name for name in MODULES if name not in DOORS])
def test_every_module_has_a_test_of_its_name(name):
    folder, _, stem = name.rpartition("/")
    candidates = [path.stem for path in (ROOT / "tests" / folder).glob("test_*.py")]
    assert [c for c in candidates if re.fullmatch(rf"test_{stem}(_[a-z]+)?", c)]


def is_command(path):
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [p for p in SCRIPTS if is_command(p)], ids=lambda p: p.stem)
def test_every_script_is_run_by_a_test(path):
    tests = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py"))
    assert f'"{path.name}"' in tests


# --- walls -------------------------------------------------------------------------------------


def body_lines(function):
    """Lines of a function below its signature and docstring."""
    body = function.body
    is_text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    rest = body[1:] if is_text and isinstance(body[0].value.value, str) else body
    return rest[-1].end_lineno - rest[0].lineno + 1 if rest else 0


def test_body_lines_leaves_out_signature_and_docstring():
    source = 'def f(\n    x,\n):\n    """One.\n\n    Two.\n    """\n    a = 1\n\n    return a\n'
    assert body_lines(ast.parse(source).body[0]) == 3


PYTHON_FILES = [path for path in committed_files() if path.suffix == ".py"]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_file_and_no_function_outgrows_its_wall(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE or "notebooks" in path.parts  # half of which is prose
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert body_lines(node) <= LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_is_short(path):
    assert path.read_text(encoding="utf-8").count("\n") <= LONGEST_SCRIPT


def test_no_committed_file_names_a_place_on_one_machine():
    place = re.compile(r"(?<![\w.$}/])/(home|root|Users|mnt|work|workspace|opt|tmp|data)/\w")
    found = []
    for path in committed_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if place.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found
