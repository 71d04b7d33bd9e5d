"""A headless Chromium for tests: pages that record what goes wrong, and an accessibility checker.

It is the system's own Chromium, driven by playwright; playwright's are not fetched. The checker is axe-core, as the
package axe-playwright-python carries it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import field, frozen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# As root in a container, and without a word to the network.
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@frozen
class Shown:
    """A page in the browser, and what it has complained of and asked for."""

    page: Page
    complaints: list[str] = field(factory=list)
    requests: list[str] = field(factory=list)

    def accessibility_faults(self) -> list[str]:
        """Return what axe-core finds, a line each."""
        from axe_playwright_python.sync_playwright import Axe

        faults: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        return [f"{fault['id']}: {node['html'][:200]}" for fault in faults for node in fault["nodes"]]

    def column(self, table: str, at: int) -> list[str]:
        """Return the texts of a column, of the rows that are shown."""
        cells = f"[...document.getElementById('{table}').tBodies[0].rows].filter(row => !row.hidden)"
        texts: list[str] = self.page.evaluate(f"{cells}.map(row => row.cells[{at}].textContent.trim())")
        return [text.replace("\u00a0", " ") for text in texts]


Show = Callable[..., Shown]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser; tests that use it are marked `browser`."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: scripts/test --all installs it as root where apt-get is")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="pbgeval-chromium-") as home, sync_playwright() as playwright:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS, env=environment)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: Browser) -> Iterator[Show]:
    """Open a file: `show(path, scheme="dark", width=360)`."""
    with ExitStack() as contexts:

        def open_file(path: Path, *, scheme: str = "light", width: int = 1100, scripts: bool = True) -> Shown:
            context = chromium.new_context(
                color_scheme=scheme, viewport={"width": width, "height": 800}, java_script_enabled=scripts
            )
            contexts.callback(context.close)
            shown = Shown(context.new_page())
            shown.page.on("console", lambda message: shown.complaints.append(f"{message.type}: {message.text}"))
            shown.page.on("pageerror", lambda error: shown.complaints.append(f"error: {error}"))
            shown.page.on("request", lambda request: shown.requests.append(request.url))
            shown.page.goto(path.as_uri())
            return shown

        yield open_file
