"""Draw the moving picture of the page in README: `python docs/figures/page.py page.webp`.

It needs playwright with Chromium, and Pillow.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from hf_vanilla.text.static_page import PageOptions, write_page

SIZE = {"width": 1120, "height": 700}
VIEWS = {"overview": 500, "map": 600, "search": 500}  # milliseconds of a step
STEP_MS = 700  # of Play


def frames(tab: Page) -> list[tuple[Image.Image, int]]:
    """Pictures of the steps of each view, with how long each is shown."""
    found = []
    for view, shown_ms in VIEWS.items():
        tab.locator(f"#tab-{view}").click()
        tab.locator(f"body[data-view={view}] .panel svg").wait_for()
        tab.locator(".play").click()
        while tab.locator(".play").inner_text() != "Play":
            found.append((Image.open(io.BytesIO(tab.screenshot())).convert("RGB"), shown_ms))
            tab.clock.run_for(STEP_MS)
    return found


def main(output: str) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = write_page(PageOptions(output=str(Path(folder) / "page.html"), single_file=True))
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        tab.goto(file.as_uri())
        tab.locator(".panel svg").wait_for()
        tab.clock.install()
        (first, _), *others = shown = frames(tab)
        browser.close()
    first.save(
        output,
        save_all=True,
        append_images=[image for image, _ in others],
        duration=[shown_ms for _, shown_ms in shown],
        loop=0,
        quality=60,
        method=4,
    )


if __name__ == "__main__":
    main(sys.argv[1])
