"""Build a parallel corpus from the help of LibreOffice (MPL-2.0), from any language to others.

Each paragraph of the help has the same id in all languages, so nothing is aligned. Three sources:

    python scripts/libreoffice_help.py --output data/help                      # the installed help
    python scripts/libreoffice_help.py --output data/help --folder DIR         # unpacked packages
    python scripts/libreoffice_help.py --output data/help --folder *.deb --ui  # Debian packages

Debian's packages are libreoffice-help-en-us, libreoffice-help-de and so on, and for `--ui` also
libreoffice-l10n-de. Needs nothing but Python. It writes train, valid and test, split by page
(`libreoffice_help_pages.json`), each as

    NAME.en.gz NAME.de.gz            one paragraph a line
    NAME.tags.en.gz NAME.tags.de.gz  the same with <b>, <code> and <a> where translators put them
    NAME.ids.gz                      PAGE#PARAGRAPH of each line
    ui.en.gz ui.de.gz                with --ui: texts of the program itself, for training only
    train_ui.en.gz train_ui.de.gz    with --ui: train, then ui

With `--languages en-US de fr`, each target has its folder, and `valid.en.gz` and `valid.targets.gz`
hold the validation pairs of all targets, with `<de>` or `<fr>` in front of each source.
"""

import argparse
import gettext
import gzip
import html
import io
import json
import lzma
import os
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

INSTALLED = ["/usr/share/libreoffice/help", "/usr/lib/libreoffice/program/resource"]
PAGES = Path(__file__).with_name("libreoffice_help_pages.json")
PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
WITHOUT_END = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"}
TAG_OF_CLASS = {"emph": "b", "literal": "code"}
SCORED_WORDS = range(4, 61)  # source words of a line of valid and test
LONGEST_UI_TEXT = 100  # words


class Paragraph(NamedTuple):
    """Text of one paragraph, and the same with tags and escaped characters."""

    text: str
    tagged: str


class Pair(NamedTuple):
    """One paragraph in both languages."""

    name: str  # PAGE#PARAGRAPH
    source: Paragraph
    target: Paragraph


class Page(HTMLParser):
    """Collects the paragraphs of one help page; text for one system or module alone is hidden.

    Attributes:
        paragraphs: paragraph by id; the first of an id counts.
        is_broken: an end tag has no start tag, or the page ends inside of an element.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: dict[str, Paragraph] = {}
        self.is_broken = False
        self._open: list[tuple[str, str | None]] = []  # element, tag to write; None = hidden
        self._id, self._plain, self._tagged = "", [""], [""]
        self.feed(page)
        self.close()
        self.is_broken = self.is_broken or bool(self._open)

    def _is_shown(self) -> bool:
        return all(tag is not None for _, tag in self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a paragraph, or note an element within one."""
        if tag in WITHOUT_END:
            return
        given = dict(attrs)
        if tag in PARAGRAPHS:
            self._id, self._plain, self._tagged = given.get("id") or "", [], []
        written = "a" if tag == "a" and "href" in given else ""
        if tag == "span":
            written = TAG_OF_CLASS.get(given.get("class") or "", "")
        self._open.append((tag, None if "hidden" in given else written))
        if written and self._is_shown():
            self._tagged.append(f"<{written}>")

    def handle_endtag(self, tag: str) -> None:
        """End the innermost element of that name."""
        if tag not in [name for name, _ in self._open]:
            self.is_broken = True
            return
        name = ""
        while name != tag:
            is_shown = self._is_shown()
            name, written = self._open.pop()
            self.is_broken = self.is_broken or name != tag
            if written and is_shown:
                self._tagged.append(f"</{written}>")
        if tag in PARAGRAPHS and self._id:
            found = Paragraph(one_line("".join(self._plain)), one_line("".join(self._tagged)))
            self.paragraphs.setdefault(self._id, found)
            self._id = ""

    def handle_data(self, data: str) -> None:
        """Add text to the paragraph."""
        if self._id and self._is_shown():
            self._plain.append(data)
            self._tagged.append(html.escape(data, quote=False))


def one_line(text: str) -> str:
    """`text` with single spaces."""
    return " ".join(text.split())


def words(text: str) -> int:
    """Number of words between spaces."""
    return len(text.split())


def files_of(source: Path) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of each `.html` and `.mo` file in a folder or a `.deb` file."""
    if not source.exists() and str(source) not in INSTALLED:
        raise ValueError(f"--folder {source} does not exist")
    if not source.is_file():
        for path in sorted(source.rglob("*")):
            if path.suffix in {".html", ".mo"} and path.is_file():
                yield path.as_posix(), path.read_bytes()
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(packed_data(source))) as archive:
            for member in archive:
                if member.name.endswith((".html", ".mo")) and member.isfile():
                    yield member.name, archive.extractfile(member).read()
    except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"{source}: {error}; unpack it by dpkg-deb -x {source} DIR") from None


def packed_data(package: Path) -> bytes:
    """The member `data.tar.*` of a `.deb` file, which is an `ar` archive."""
    content = package.read_bytes()
    position = len(b"!<arch>\n")
    while content.startswith(b"!<arch>\n") and position + 60 <= len(content):
        name, size = content[position : position + 16], content[position + 48 : position + 58]
        position += 60
        if name.startswith(b"data.tar"):
            return content[position : position + int(size)]
        position += int(size) + int(size) % 2
    raise ValueError(f"{package} is neither a folder nor a .deb file with a member data.tar")


Contents = dict[str, dict[str, bytes]]  # by language, then by name


def read_sources(sources: list[str], languages: list[str]) -> tuple[Contents, Contents]:
    """Help pages and catalogs of messages."""
    pages: Contents = {language: {} for language in languages}
    catalogs: Contents = {language: {} for language in languages}
    for source in sources:
        for path, content in files_of(Path(source)):
            for language in languages:
                for files, folder in ((pages, "text"), (catalogs, "LC_MESSAGES")):
                    _, is_inside, name = path.partition(f"/{language}/{folder}/")
                    if is_inside:
                        files[language][name] = content
    for language in languages:
        if not pages[language]:
            raise ValueError(
                f"no help pages of {language!r} in {' '.join(sources)}: install the package "
                f"libreoffice-help-{language.lower()}, or give it by --folder"
            )
    return pages, catalogs


def read_pages(pages: dict[str, bytes], dropped: Counter, broken: set[str]) -> dict[str, Page]:
    """The readable pages, by name."""
    found = {}
    for name, content in sorted(pages.items()):
        try:
            page = Page(content.decode("utf-8"))
        except UnicodeDecodeError:
            page = None
        if page is None or page.is_broken:
            dropped["pages with broken HTML"] += 1
            broken.add(name)
        else:
            found[name] = page
    return found


def aligned_pairs(source: dict[str, Page], target: dict[str, Page], dropped: Counter) -> list[Pair]:
    """All paragraphs that both languages have, in page order."""
    dropped["pages in one language only"] += len(source.keys() ^ target.keys())
    pairs = []
    for name in sorted(source.keys() & target.keys()):
        ours, theirs = source[name].paragraphs, target[name].paragraphs
        for key, paragraph in ours.items():
            if not key.startswith(("par_id", "hd_id")):
                dropped["paragraphs without an id of the help"] += 1
            elif key not in theirs:
                dropped["paragraphs in one language only"] += 1
            elif not paragraph.text or not theirs[key].text:
                dropped["empty, or for one system or module alone"] += 1
            elif paragraph.text == theirs[key].text:
                dropped["the same text in both languages"] += 1
            else:
                pairs.append(Pair(f"{name}#{key}", paragraph, theirs[key]))
        dropped["paragraphs in one language only"] += sum(
            key not in ours and key.startswith(("par_id", "hd_id")) for key in theirs
        )
    return pairs


def split(
    pairs: list[Pair], pages: dict[str, list[str]], dropped: Counter
) -> dict[str, list[Pair]]:
    """Parts by page; train has no line, on either side, of the other parts."""
    part_of = {page: part for part, names in pages.items() for page in names}
    parts: dict[str, list[Pair]] = {part: [] for part in ("heldout", "test", "valid", "train")}
    seen: set[tuple[str, str, str]] = set()
    for pair in pairs:
        part = part_of.get(pair.name.split("#")[0], "train")
        if part != "train" and words(pair.source.text) not in SCORED_WORDS:
            dropped["valid, test, held-out pages: not 4 to 60 source words"] += 1
        elif (part, pair.source.text, pair.target.text) in seen:
            dropped["doubled"] += 1
        else:
            seen.add((part, pair.source.text, pair.target.text))
            parts[part].append(pair)
    sources, targets = scored_texts(parts)
    train = parts["train"]
    parts["train"] = [
        pair
        for pair in train
        if pair.source.text not in sources and pair.target.text not in targets
    ]
    dropped["train: in valid, test or a held-out page"] += len(train) - len(parts["train"])
    return parts


def scored_texts(parts: dict[str, list[Pair]]) -> tuple[set[str], set[str]]:
    """Source and target texts of all parts but train."""
    scored = [pair for part, pairs in parts.items() if part != "train" for pair in pairs]
    return {pair.source.text for pair in scored}, {pair.target.text for pair in scored}


def messages(catalogs: dict[str, bytes]) -> dict[tuple[str, str], str]:
    """Translation by catalog and message, without plural forms."""
    return {
        (name, message): translation
        for name, content in sorted(catalogs.items())
        for message, translation in gettext.GNUTranslations(io.BytesIO(content))._catalog.items()
        if message and isinstance(message, str)
    }


def ui_text(message: str) -> str:
    """A message without its context and the mark of a menu's letter."""
    return one_line(re.sub(r"[~_](?=\w)", "", message.split("\x04")[-1]))


def ui_pairs(
    catalogs: Contents, parts: dict[str, list[Pair]], dropped: Counter
) -> list[tuple[str, str]]:
    """Texts of the program in both languages that no scored line contains."""
    sides = []
    for language, files in catalogs.items():
        if language != "en-US" and not files:
            raise ValueError(
                f"--ui: no catalogs of {language!r}: install the package "
                f"libreoffice-l10n-{language.lower()}, or give it by --folder"
            )
        sides.append(messages(files))
    lines = scored_texts(parts)
    joined = ["\n".join(sorted(side)) for side in lines]
    found: dict[tuple[str, str], None] = {}
    for key in sides[0] or sides[1]:  # the messages are English
        pair = tuple(ui_text(side.get(key, "") if side else key[1]) for side in sides)
        scored = [
            text in lines[i] or (words(text) >= 4 and text.rstrip(".") in joined[i])
            for i, text in enumerate(pair)
        ]
        if (
            not all(pair)
            or not any(map(str.isalpha, pair[0]))
            or max(map(words, pair)) > LONGEST_UI_TEXT
        ):
            dropped["ui: empty, without a letter, or too long"] += 1
        elif pair[0] == pair[1]:
            dropped["ui: the same text in both languages"] += 1
        elif any(scored):
            dropped["ui: in valid, test or a held-out page"] += 1
        elif pair in found:
            dropped["ui: doubled"] += 1
        else:
            found[pair] = None
    return list(found)


def write_lines(path: Path, lines: list[str]) -> None:
    """Write a gzip file aside, then move it to `path`; equal lines give equal bytes."""
    aside = path.with_name(path.name + ".part")
    content = "".join(line + "\n" for line in lines).encode("utf-8")
    aside.write_bytes(gzip.compress(content, mtime=0))
    os.replace(aside, path)


def write_corpus(
    folder: Path, parts: dict[str, list[Pair]], ui: list[tuple[str, str]], names: list[str]
) -> None:
    """Write all files of two languages and print their sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in parts.items():
        for side, name in enumerate(names, start=1):
            write_lines(folder / f"{part}.{name}.gz", [pair[side].text for pair in pairs])
            write_lines(folder / f"{part}.tags.{name}.gz", [pair[side].tagged for pair in pairs])
        write_lines(folder / f"{part}.ids.gz", [pair.name for pair in pairs])
        tagged = sum("<" in pair.source.tagged for pair in pairs)
        count = sum(words(pair.source.text) for pair in pairs)
        print(f"{part}: {len(pairs):,} pairs, {count:,} source words, {tagged:,} with tags")
    if ui:
        for side, name in enumerate(names):
            lines = [pair[side] for pair in ui]
            train = [pair[side + 1].text for pair in parts["train"]]
            write_lines(folder / f"ui.{name}.gz", lines)
            write_lines(folder / f"train_ui.{name}.gz", train + lines)
        print(f"ui: {len(ui):,} pairs")


def write_validation(folder: Path, valid: dict[str, list[Pair]], source: str) -> None:
    """Write the validation of one model for all targets: in turn, with a tag of the language."""
    rows = [
        (f"<{target}> {pair.source.text}", pair.target.text)
        for pairs in zip_longest(*([(target, pair) for pair in valid[target]] for target in valid))
        for target, pair in filter(None, pairs)
    ]
    write_lines(folder / f"valid.{source}.gz", [row[0] for row in rows])
    write_lines(folder / "valid.targets.gz", [row[1] for row in rows])


def report(dropped: Counter, broken: set[str], absent: list[str]) -> None:
    """Print what was left out, and why."""
    print("dropped:", *(f"{count:8,}  {reason}" for reason, count in dropped.items()), sep="\n")
    if broken:
        print("broken HTML:", " ".join(sorted(broken)[:10]))
    if absent:
        print(f"warning: {len(absent)} pages of the split are absent; scores differ by version")


def short_names(languages: list[str]) -> dict[str, str]:
    """Language codes in the names of files: en of en-US, unless two would be the same.

    Raises:
        ValueError: fewer than two languages, or one twice.
    """
    if len(languages) < 2 or len(set(languages)) < len(languages):
        raise ValueError(f"--languages {' '.join(languages)}: give two or more, each once")
    names = {language: language.split("-")[0] for language in languages}
    if len(set(names.values())) < len(names):
        return dict(zip(languages, languages, strict=True))
    return names


def build(options: argparse.Namespace) -> None:
    """Read, pair, split and write."""
    names = short_names(options.languages)
    contents, catalogs = read_sources(options.folder, options.languages)
    split_pages = json.loads(PAGES.read_text(encoding="utf-8"))
    source, *targets = options.languages
    valid = {}
    for target in targets:
        two, dropped, broken = [source, target], Counter(), set()
        pages = [read_pages(contents[language], dropped, broken) for language in two]
        parts = split(aligned_pairs(*pages, dropped), split_pages, dropped)
        if not parts["train"]:
            raise ValueError(f"{source} and {target}: no page has paragraphs with the same ids")
        both = {language: catalogs[language] for language in two}
        ui = ui_pairs(both, parts, dropped) if options.ui else []
        if not options.heldout:
            del parts["heldout"]
        folder = options.output / names[target] if len(targets) > 1 else options.output
        print(f"{folder}: {source} to {target}")
        write_corpus(folder, parts, ui, [names[source], names[target]])
        valid[names[target]] = parts["valid"]
        absent = [page for part in split_pages.values() for page in part if page not in pages[0]]
        report(dropped, broken, absent)
    if len(targets) > 1:
        write_validation(options.output, valid, names[source])


def main() -> None:
    """Read the options; what a user can cause ends in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--languages", nargs="+", default=["en-US", "de"], help="source, then one target or more"
    )
    parser.add_argument("--folder", nargs="+", default=INSTALLED, help="folders or .deb files")
    parser.add_argument("--ui", action="store_true", help="also texts of the program")
    parser.add_argument("--heldout", action="store_true", help="also the 120 unseen pages")
    try:
        build(parser.parse_args())
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
