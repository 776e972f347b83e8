"""Headless Chromium for the tests of the app's pages."""

import shutil
import threading
from contextlib import contextmanager

import pytest

from hf_vanilla.serve import ServeOptions, Settings, listening

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
HOSTILE = (
    "<img src=x onerror=\"window.broken='tag'\"><script>window.broken='script'</script>"
    "${window.broken='dollar'} {{window.broken}} **b** &lt;i&gt; \"'`"
)
LOCAL = ("http://127.0.0.1:", "data:", "blob:")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
# every shift counts, also one that follows an input at once
RECORD_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { value, sources } of list.getEntries()) {
    const parts = sources.map(({ node, previousRect, currentRect }) =>
      [node?.className ?? node?.textContent, previousRect.y, currentRect.y].join(" "));
    window.shifts.push([value, ...parts]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""


@contextmanager
def launched():
    """A browser; the tests are skipped without playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def served(model, *, options=None, **settings):
    """The address of the service of a model, with these options and settings of its page."""
    pytest.importorskip("uvicorn")
    given = ServeOptions(model=[model], **(options or {}))
    with listening(given, Settings(**settings)) as (server, address):
        thread = threading.Thread(target=server.run)
        thread.start()
        yield address
        server.should_exit = True
        thread.join()


@contextmanager
def tab_of(browser, address, *, is_slow=False, **context):
    """A page of a visitor; it must not fail, run what is text, or reach another machine.

    With `is_slow` it is loaded through a slow network and drawn by a slow processor, so that states
    that last for one frame are seen.
    """
    own = browser.new_context(**context)
    tab = own.new_page()
    if is_slow:
        slow_down(tab)
    tab.set_default_timeout(60_000)
    hosts, failures = [], []
    tab.on("request", lambda request: hosts.append(request.url))
    tab.on("pageerror", lambda error: failures.append(str(error)))
    tab.add_init_script(RECORD_SHIFTS)
    tab.goto(address)
    try:
        yield tab
    except Exception as error:
        error.add_note(f"errors of the page: {failures}")
        raise
    broken = tab.evaluate("window.broken")
    own.close()
    assert failures == []
    assert broken is None
    assert [host for host in hosts if not host.startswith(LOCAL)] == []


@contextmanager
def visits(model, is_ready, **settings):
    """Opens a model's page for visitors; `is_ready(tab)` waits for it; nothing may move there."""
    with launched() as browser, served(model, **settings) as address:

        @contextmanager
        def visit(**context):
            with tab_of(browser, address, **context) as tab:
                is_ready(tab)
                yield tab
                shifts = tab.evaluate("window.shifts")
                assert shifts == [], f"moved on the page: {shifts}"

        yield visit


def choose_by_key(tab, file):
    """Open the page's file chooser with the Enter key and choose a file."""
    with tab.expect_file_chooser() as chooser:
        tab.locator("input.file").press("Enter")
    chooser.value.set_files(file)


def slow_down(tab):
    """A network of 300 kB/s with 40 ms of delay, and a sixth of the processor."""
    devtools = tab.context.new_cdp_session(tab)
    devtools.send("Network.enable")
    speed = {"downloadThroughput": 300_000, "uploadThroughput": 300_000}
    devtools.send("Network.emulateNetworkConditions", {"offline": False, "latency": 40, **speed})
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": 6})


def drag_by_finger(tab, points):
    """Put a finger on the first point, move it along the others, and lift it."""
    devtools = tab.context.new_cdp_session(tab)

    def touch(kind, *at):
        where = [{"x": x, "y": y} for x, y in at]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})

    touch("touchStart", points[0])
    for point in points[1:]:
        touch("touchMove", point)
    touch("touchEnd")


def violations(tab, part=".translator"):
    """What axe-core finds on a page, or on one part of it, as it is now."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(tab, context=part).response["violations"]
    return [(rule["id"], node["html"][:200]) for rule in found for node in rule["nodes"]]
