"""The corpus of LibreOffice's help, from a small help that is written here."""

import gzip
import io
import json
import runpy
import struct
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "libreoffice_help.py"
SPLIT = json.loads(SCRIPT.with_name("libreoffice_help_pages.json").read_text())
TEST, HELDOUT = SPLIT["test"][0], SPLIT["heldout"][0]
PAGE = "<html><head><meta charset='utf-8'></head><body>{}</body></html>"
HIDDEN = '<span hidden="true" class="MAC">Cmd</span>'
ENGLISH = {
    "own.html": '<h1 id="hd_id1">Bold &amp; <span class="emph">new</span></h1>'
    f'<p id="par_id2">Press<br> the {HIDDEN}<a href="x.html">key</a> <a name="y"></a>now</p>'
    '<span hidden="true"><p id="par_id3">Only on Windows.</p></span><p id="note">no id</p>'
    '<p id="par_id4">same</p><p id="par_id5">missing</p><h2 id="hd_id1">second of an id</h2>'
    '<p id="par_id6">A line of the test page.</p>',
    TEST: '<p id="par_id1">A line of the test page.</p><p id="par_id2">Too short</p>',
    HELDOUT: '<p id="par_id1">A line that nobody sees.</p>',
    "english.html": '<p id="par_id1">one</p>',
    "broken.html": '<p id="par_id1">never ended',
}
GERMAN = {
    "own.html": '<h1 id="hd_id1">Fett &amp; <span class="emph">neu</span></h1>'
    '<p id="par_id2">Jetzt die <a href="x.html">Taste</a> drücken</p>'
    '<p id="par_id3">Nur unter Windows.</p><p id="note">keine</p><p id="par_id4">same</p>'
    '<p id="par_id6">Eine andere Zeile.</p>',
    TEST: '<p id="par_id1">Eine Zeile der Testseite.</p><p id="par_id2">Zu kurz</p>',
    HELDOUT: '<p id="par_id1">Eine Zeile, die niemand sieht.</p>',
    "broken.html": '<p id="par_id1">gut</p>',
}
MESSAGES = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "dialog|ok\x04~Open": "Ö_ffnen",
    "tip\x04A line of the test": "Eine Zeile",
    "same\x04OK": "OK",
}


def catalog(messages):
    """The bytes of a `.mo` file."""
    rows = [(key.encode(), text.encode()) for key, text in sorted(messages.items())]
    position = 28 + 16 * len(rows)
    tables, texts = (b"", b""), b""
    for row in rows:
        sizes = [struct.pack("<2I", len(text), 0) for text in row]
        tables = tuple(table + size for table, size in zip(tables, sizes, strict=True))
    filled = []
    for side in range(2):
        table = b""
        for row in rows:
            table += struct.pack("<2I", len(row[side]), position + len(texts))
            texts += row[side] + b"\0"
        filled.append(table)
    header = struct.pack("<7I", 0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0)
    return header + filled[0] + filled[1] + texts


@pytest.fixture
def installed(tmp_path):
    for language, pages in (("en-US", ENGLISH), ("de", GERMAN)):
        for name, body in pages.items():
            path = tmp_path / "help" / language / "text" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PAGE.format(body), encoding="utf-8")
    path = tmp_path / "help" / "resource" / "de" / "LC_MESSAGES" / "sw.mo"
    path.parent.mkdir(parents=True)
    path.write_bytes(catalog(MESSAGES))
    return tmp_path / "help"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def lines(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def debian_package(folder, to):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        archive.add(folder, "./usr/share/libreoffice/help")
    members = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0"), ("data.tar.xz", packed.getvalue())):
        header = f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        members += header.encode() + content + b"\n" * (len(content) % 2)
    to.write_bytes(members)


def test_pairs_have_the_same_id_and_the_translators_tags(monkeypatch, installed, tmp_path, capsys):
    out = tmp_path / "out"
    run(monkeypatch, "--output", out, "--folder", installed, "--ui", "--heldout")
    assert lines(out / "train.en.gz") == ["Bold & new", "Press the key now"]
    assert lines(out / "train.de.gz") == ["Fett & neu", "Jetzt die Taste drücken"]
    assert lines(out / "train.tags.en.gz") == [
        "Bold &amp; <b>new</b>",
        "Press the <a>key</a> now",
    ]
    assert lines(out / "train.tags.de.gz")[1] == "Jetzt die <a>Taste</a> drücken"
    assert lines(out / "train.ids.gz") == ["own.html#hd_id1", "own.html#par_id2"]
    assert lines(out / "test.en.gz") == ["A line of the test page."]
    assert lines(out / "heldout.de.gz") == ["Eine Zeile, die niemand sieht."]
    assert (lines(out / "ui.en.gz"), lines(out / "ui.de.gz")) == (["Open"], ["Öffnen"])
    assert lines(out / "train_ui.de.gz")[-2:] == ["Jetzt die Taste drücken", "Öffnen"]
    told = capsys.readouterr().out
    for fact in (
        "1  pages with broken HTML",
        "2  pages in one language only",  # one of them is broken in English
        "1  paragraphs in one language only",
        "1  paragraphs without an id",
        "1  the same text",
        "1  empty, or for one system",
        "1  valid, test, held-out pages: not 4 to 60",
        "1  train: in valid, test",
        "1  ui: in valid, test",
        "1  ui: the same text",
        "broken HTML: broken.html",
        "pages of the split are absent",
    ):
        assert fact in told, told


def test_debian_packages_give_the_same_corpus_without_the_unseen_pages(
    monkeypatch, installed, tmp_path
):
    debian_package(installed, tmp_path / "help.deb")
    out, packed = tmp_path / "out", tmp_path / "packed"
    run(monkeypatch, "--output", out, "--folder", installed)
    run(monkeypatch, "--output", packed, "--folder", tmp_path / "help.deb")
    files = sorted(path.name for path in out.iterdir())
    assert "heldout.en.gz" not in files
    assert files == sorted(path.name for path in packed.iterdir())
    assert all((out / name).read_bytes() == (packed / name).read_bytes() for name in files)


def test_several_targets_have_a_folder_each_and_one_tagged_validation(
    monkeypatch, installed, tmp_path
):
    (installed / "de").rename(installed / "fr")
    for language in ("en-US", "fr", "de"):
        for name in ("own.html", SPLIT["valid"][0]):
            path = installed / language / "text" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = f"{language}: four words and {name}"
            path.write_text(PAGE.format(f'<p id="par_id1">{text}</p>'), encoding="utf-8")
    run(
        monkeypatch, "--output", tmp_path, "--folder", installed, "--languages", "en-US", "fr", "de"
    )
    assert len(lines(tmp_path / "de" / "train.en.gz")) == 1
    name = SPLIT["valid"][0]
    assert lines(tmp_path / "valid.en.gz") == [
        f"<{tag}> en-US: four words and {name}" for tag in ("fr", "de")
    ]
    assert lines(tmp_path / "valid.targets.gz")[1] == f"de: four words and {name}"


def test_what_a_user_can_do_wrong_is_one_line(monkeypatch, installed, tmp_path):
    other, damaged = tmp_path / "other", tmp_path / "damaged.deb"
    for language in ("en-US", "de"):
        path = other / language / "text" / f"{language}.html"
        path.parent.mkdir(parents=True)
        path.write_text(PAGE.format('<p id="par_id1">one</p>'))
    debian_package(installed, damaged)
    damaged.write_bytes(damaged.read_bytes()[:600])
    cases = (
        (["--folder", tmp_path / "nowhere"], "nowhere does not exist"),
        (["--folder", SCRIPT], "neither a folder nor a .deb file"),
        (["--folder", damaged], "unpack it by dpkg-deb -x"),
        (["--folder", installed, "--languages", "en-US", "fr"], "libreoffice-help-fr"),
        (["--folder", installed, "--languages", "de", "de"], "two or more, each once"),
        (["--folder", other], "no page has paragraphs with the same ids"),
        (["--folder", other, "--ui"], "no page has paragraphs with the same ids"),
    )
    for arguments, told in cases:
        with pytest.raises(SystemExit, match=told):
            run(monkeypatch, "--output", tmp_path / "out", *arguments)
        assert not (tmp_path / "out").exists(), arguments
    (installed / "resource" / "de" / "LC_MESSAGES" / "sw.mo").unlink()
    with pytest.raises(SystemExit, match="libreoffice-l10n-de"):
        run(monkeypatch, "--output", tmp_path / "out", "--folder", installed, "--ui")
