"""Pages of the site that are not Markdown in this folder: a hook of mkdocs.

README, CHANGELOG, CONTRIBUTING and the notebook are read from where they are.
"""

import logging
import re
import tempfile
from pathlib import Path

import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from hf_vanilla.text.static_page import PageOptions, write_page

# the page of the package's model, which the first pages show
LIVE = "translate_page.html"
SHOWN_ON = {"index.md": "## Quick start", "getting_started.md": "## Use the models in the package"}
FRAME = f"""
<iframe class="live" src="{LIVE}" title="The model of the package in this browser"></iframe>

[Open it in a window of its own]({LIVE}).
"""
NOTEBOOK = "notebooks/the_paper_in_code"
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

logger = logging.getLogger("mkdocs.hooks.site_pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root folder and the notebook."""
    root = Path(config.config_file_path).parent
    for source, name in ROOT_PAGES.items():
        # relative to the folder of pages, as on_page_markdown expects all links
        text = re.sub(r"\]\((?!\w+:|#)", "](../", (root / source).read_text(encoding="utf-8"))
        text = text.replace("](../docs/", "](").replace('="docs/', '="')  # also of HTML tags
        files.append(File.generated(config, name, content=text))
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(PageOptions(output=f"{folder}/{LIVE}", single_file=True))
        files.append(File.generated(config, LIVE, content=page.read_text(encoding="utf-8")))
    for name, content in notebook_files(root, config).items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files of the repository by links to their pages; show the model."""
    heading = SHOWN_ON.get(page.file.src_uri)
    if heading is not None:
        if f"{heading}\n" not in markdown:
            logger.warning("%s has no %s to show the model below", page.file.src_uri, heading)
        markdown = markdown.replace(f"{heading}\n", f"{heading}\n{FRAME}", 1)
    for source, name in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    return markdown.replace(f"]({NOTEBOOK}.py)", f"]({NOTEBOOK}.md)")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    r"""Show argument types of a config as types, and `|` in the cells of tables without escape.

    transformers requires backquotes around the types; GitHub needs `\|` in a cell, also in code.
    """
    html = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
    if not page.file.src_uri.startswith("reference/"):
        return html
    return re.sub(r"<code>(`[^<]*)</code>", _plain_type, html)


def _plain_type(found: re.Match[str]) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", found[1].replace("*", ""))


def notebook_files(root: Path, config: MkDocsConfig) -> dict[str, str | bytes]:
    """The notebook's page, its images and the notebook to download, by file name."""
    notebook = jupytext.read(root / "docs" / f"{NOTEBOOK}.py")
    download = nbformat.writes(notebook)
    executed = root / config.extra["executed_notebook"]
    if executed.is_file():
        notebook = nbformat.read(executed, as_version=4)
    else:
        logger.info("the notebook is shown without results: `make docs` computes them")
    folder, _, stem = NOTEBOOK.rpartition("/")
    exporter = MarkdownExporter()
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)
    markdown, resources = exporter.from_notebook_node(
        notebook, {"unique_key": stem, "output_files_dir": ""}
    )
    head, _, rest = markdown.partition("\n\n")
    intro = f"[Download this notebook]({stem}.ipynb) to run it and do its exercises."
    pictures = {f"{folder}/{name}": data for name, data in resources["outputs"].items()}
    return {
        f"{NOTEBOOK}.md": f"{head}\n\n{intro}\n\n{rest}",
        f"{NOTEBOOK}.ipynb": download,
        **pictures,
    }
