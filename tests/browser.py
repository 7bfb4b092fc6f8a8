"""A JupyterLab server of its own and a page in Chromium, for the tests of the widgets."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]
START_SECONDS = 180


def chromium() -> str:
    """The browser's path. Skips without one, or fails where `$LABKIT_REQUIRE_BROWSER` is set."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    try:
        import playwright  # noqa: F401
    except ImportError:
        missing = "Playwright (pip install playwright)"
    else:
        missing = "" if path else "Chromium (apt-get install chromium)"
    if missing and os.environ.get("LABKIT_REQUIRE_BROWSER"):
        pytest.fail(f"LABKIT_REQUIRE_BROWSER is set, and {missing} is not there")
    if missing:
        pytest.skip(f"needs {missing}")
    return str(path)


class Server:
    """JupyterLab in an empty home of its own, on a free port. `url(notebook)` opens a file."""

    def __init__(self, folder: Path, dark: bool = False) -> None:
        self.root, home = folder / "root", folder / "home"
        self.root.mkdir(parents=True)
        settings = home / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
        theme = {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"}
        (settings / "themes.jupyterlab-settings").write_text(json.dumps(theme))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.token = secrets.token_hex(16)
        self.log = folder / "server.log"
        places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
                  "JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython",
                  "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
        environment = {**os.environ, "LABKIT_DEVICE": "cpu",
                       **{name: str(home / place) for name, place in places.items()}}
        options = [f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0",
                   "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={self.token}",
                   f"--ServerApp.root_dir={self.root}", "--ServerApp.open_browser=False",
                   "--ServerApp.allow_root=True", "--LabApp.expose_app_in_browser=True"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options],
                                            env=environment, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, cwd=self.root)

    def wait(self) -> None:
        """Until its API answers."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, f"JupyterLab ended:\n{self.log.read_text()}"
            with contextlib.suppress(OSError):
                self.api("status")
                return
            time.sleep(0.2)
        pytest.fail(f"JupyterLab did not answer:\n{self.log.read_text()}")

    def api(self, path: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/{path}",
                                         headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def url(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?reset&token={self.token}"

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def opened(folder: Path, notebook: Path, dark: bool = False) -> Iterator[Any]:
    """The notebook, open in a page of a fresh browser, its kernel idle. A test that fails leaves
    `failure.png` and prints the page's console and the server's log."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    server, console = Server(folder, dark), []
    try:
        shutil.copy(notebook, server.root / notebook.name)
        server.wait()
        with sync_playwright() as driver:
            browser = driver.chromium.launch_persistent_context(
                str(folder / "browser"), executable_path=path, args=ARGUMENTS, headless=True,
                viewport={"width": 1400, "height": 1300},
                color_scheme="dark" if dark else "light")
            page = browser.new_page()
            page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: console.append(f"error: {error}"))
            page.labkit_console = console
            try:
                page.goto(server.url(notebook.name), wait_until="commit")
                page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=START_SECONDS * 1e3)
                _idle(server)
                yield page
            except BaseException:
                with contextlib.suppress(Exception):
                    page.screenshot(path=str(folder / "failure.png"))
                print(f"screenshot: {folder / 'failure.png'}", *console[-30:], sep="\n")
                print(server.log.read_text()[-4000:])
                raise
            finally:
                browser.close()
    finally:
        server.stop()


def _idle(server: Server) -> None:
    """Waits until the notebook's kernel has started."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        sessions = server.api("sessions")
        if sessions and sessions[0]["kernel"]["execution_state"] == "idle":
            return
        time.sleep(0.2)
    pytest.fail(f"the kernel did not start: {server.api('sessions')}")


def run_all(page: Any, timeout: float = 120) -> None:
    """Runs all cells, and waits until the last one has run without an error."""
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')",)
    page.wait_for_function(
        "() => { const p = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];"
        " return p.length && p.every(x => /\\[\\d+\\]/.test(x.textContent)); }",
        timeout=timeout * 1e3)
    errors = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error'], "
                          ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']")
    assert errors.count() == 0, errors.all_text_contents()
