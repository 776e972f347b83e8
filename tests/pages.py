"""The pages of this repository as their readers see them: fenced blocks, and commands in those."""

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHELLS = ("bash", "sh", "shell", "console")
FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})[ ]*(?P<info>.*)$")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its first line inside the fence
    language: str
    title: str
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def page_paths():
    """Every page there is, so that one written later is found by itself."""
    first = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "model_card.md")]
    return [path for path in first if path.is_file()] + sorted((ROOT / "docs").rglob("*.md"))


def blocks_of(path):
    """The fenced blocks of a page, in order.

    Raises:
        ValueError: a fence is opened and never closed.
    """
    name = path.relative_to(ROOT).as_posix()
    found, opened, inside = [], None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, inside = (number, fence), []
        elif fence and not fence["info"] and fence["fence"].startswith(opened[1]["fence"]):
            found.append(_block(name, *opened, inside))
            opened = None
        else:
            inside.append(line)
    if opened is not None:
        raise ValueError(f"{name}:{opened[0]}: this fence is never closed")
    return found


def _block(page, number, fence, lines):
    info = fence["info"]
    language = re.search(r"[\w+-]+", info)
    title = re.search(r'title="([^"]+)"', info)
    text = textwrap.dedent("\n".join(lines)) + "\n"
    return Block(
        page, number + 1, language[0].lower() if language else "", title[1] if title else "", text
    )


def shell_text(block):
    """What the reader types; of a console session the lines after `$`, without the answers."""
    if block.language != "console":
        return block.text
    return "".join(line[2:] + "\n" for line in block.text.splitlines() if line.startswith("$ "))


def shown_text(block):
    """What the page says will be printed."""
    if block.language != "console":
        return block.text
    return "".join(line + "\n" for line in block.text.splitlines() if not line.startswith("$ "))


def commands_in(text):
    """The words of each command of a shell text, one list for each, without redirections."""
    found, waiting, end = [], "", None
    for line in text.replace("\\\n", " ").splitlines():
        if end is not None:  # inside a here-document
            end = None if line.strip() == end else end
            continue
        try:
            words = _words(waiting + line)
        except ValueError:  # a quotation goes on in the next line
            waiting += line + "\n"
            continue
        waiting = ""
        here = re.search(r"<<-?\s*['\"]?(\w+)", line)
        end = here[1] if here else None
        found += _split(words)
    return [words for words in found if words]


def _words(text):
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _split(words):
    """Cut at pipes and separators; leave out redirections and variables set in front."""
    found, skips = [[]], False
    for word in words:
        if skips:
            skips = False
        elif set(word) <= set("|;&()"):
            found.append([])
        elif set(word) <= set("<>&"):
            skips = True
        elif found[-1] or not re.match(r"\w+=", word):
            found[-1].append(word)
    return found


def spoken(words):
    """A command as the table names it: `scripts/train.py --x 1` for `.venv/bin/python scripts/...`.

    `hf-vanilla train` is `scripts/train.py`, too. A launcher's command begins with its name.
    """
    name = words[0].rsplit("/", 1)[-1] if "bin/" in words[0] else words[0]
    name = "python" if name == "python3" else name
    rest = words[1:]
    if name == "python" and rest[:2] == ["-m", "hf_vanilla"]:
        name, rest = "hf-vanilla", rest[2:]
    if name == "python" and rest and rest[0].endswith(".py"):
        return " ".join(rest)
    if name == "hf-vanilla" and rest and not rest[0].startswith("-"):
        return " ".join([f"scripts/{rest[0].replace('-', '_')}.py", *rest[1:]])
    return " ".join([name, *rest])


def launched(words):
    """The script and its arguments in a launcher's command; nothing if there is none."""
    places = [i for i, word in enumerate(words) if i and word.endswith(".py")]
    is_launched = places and not spoken(words).startswith(words[places[0]])
    return words[places[0] :] if is_launched else []


def all_commands(blocks):
    """Every command of the blocks as the table names it, and what launchers launch."""
    found = []
    for block in blocks:
        if block.language in SHELLS:
            for words in commands_in(shell_text(block)):
                found += [spoken(words), *filter(None, [" ".join(launched(words))])]
    return found
