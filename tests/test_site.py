"""The website builds without warnings, has every public name, and works offline."""

import re
import shutil
import time
from dataclasses import fields
from html import escape
from pathlib import Path

import jupytext
import nbconvert
import nbformat
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import hf_vanilla
from hf_vanilla.text.options import TranslationDataOptions
from hf_vanilla.training.options import TrainRecipe

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NOTEBOOK = "notebooks/the_paper_in_code"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
LOADED = (
    r'<(?:script|img|iframe|source)\b[^>]* src="([^"#]+)'
    r'|<link rel="(?:icon|stylesheet|preconnect)" href="([^"#]+)'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; as in `make docs`, a broken link or another warning is an error."""
    folder = tmp_path_factory.mktemp("docs")
    notebook = jupytext.read(ROOT / "docs" / f"{NOTEBOOK}.py")
    figure = nbformat.v4.new_output("display_data", {"image/png": PIXEL})
    notebook.cells[1].outputs = [figure]
    nbformat.write(notebook, folder / "executed.ipynb")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder / "site"), strict=True)
    config.extra["executed_notebook"] = str(folder / "executed.ipynb")
    config.plugins.on_startup(command="build", dirty=False)
    with pytest.MonkeyPatch.context() as patch:  # its templates may lie beside another Python
        patch.setenv("JUPYTER_PATH", str(Path(nbconvert.__file__).parents[4] / "share/jupyter"))
        build(config)
    config.plugins.on_shutdown()
    return folder / "site"


def test_a_page_loads_nothing_from_outside(site):
    # the page of the model has a policy of its own; see tests/text/test_static_page.py
    for path in set(site.rglob("*.html")) - {site / "404.html", site / "translate_page.html"}:
        names = ["".join(found) for found in re.findall(LOADED, path.read_text("utf-8"))]
        assert names
        assert all((path.parent / name).is_file() for name in names)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text("utf-8"))


@pytest.mark.parametrize("page", ["index.html", "getting_started.html"])
def test_the_first_pages_show_the_model(site, page):
    assert 'src="translate_page.html"' in (site / page).read_text("utf-8")


def test_code_in_the_cells_of_tables_shows_no_escapes(site):
    for path in site.rglob("*.html"):
        codes = re.findall(r"<code[^>]*>(?:(?!</code>).)*", path.read_text("utf-8"), re.DOTALL)
        assert not [code for code in codes if r"\|" in code], path
    assert "nrefs:1|case:mixed|eff:no" in (site / "index.html").read_text("utf-8")


def test_the_reference_has_every_public_name(site):
    text = "".join(path.read_text("utf-8") for path in (site / "reference").iterdir())
    assert all(f'id="hf_vanilla.{name}"' in text for name in hf_vanilla.__all__)


def test_the_reference_has_the_help_text_of_each_option(site):
    page = (site / "reference/training.html").read_text(encoding="utf-8")
    declared = [*fields(TrainRecipe), *fields(TranslationDataOptions)]
    texts = [escape(f.metadata["help"], quote=False) for f in declared]
    assert not [text for text in texts if text not in page]


def test_the_page_of_the_notebook_has_its_figures_and_formulas(site):
    text = (site / f"{NOTEBOOK}.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<img [^>]*src="the_paper_in_code_', text)) == 1
    assert text.count('<math display="block"') == 10
    assert "$$" not in text


def test_the_notebook_to_download_has_no_results(site):
    notebook = nbformat.read(site / f"{NOTEBOOK}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    "page", ["index.html", pytest.param("reference/training.html", marks=pytest.mark.release)]
)
def test_the_search_works_in_a_browser_without_a_server(site, page):
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_default_timeout(120_000)
        requests, errors = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: errors.append(error))
        tab.goto((site / page).as_uri())
        found = tab.locator(".md-search-result__item").first
        deadline = time.monotonic() + 120
        while not found.is_visible() and time.monotonic() < deadline:
            # what is typed before the page's script is ready is not searched
            tab.locator("input.md-search__input").fill("")
            tab.locator("input.md-search__input").press_sequentially("save_total_limit")
            tab.wait_for_timeout(1000)
        text, address = found.inner_text(), found.locator("a").first.get_attribute("href")
        browser.close()
    assert "save_total_limit" in text
    assert address.startswith((site / "reference/training.html").as_uri())
    assert errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
