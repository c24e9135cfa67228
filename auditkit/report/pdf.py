"""Prints a page as PDF with a Chromium that is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from auditkit.errors import BadInput, RuntimeFailure

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-pdf-header-footer",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Even so it would ask for addresses of its maker's servers: now it finds none, and asks nobody else.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--no-proxy-server",
)
_SECONDS = 120
# What Chromium says where its sandbox cannot start: for root, or where the system forbids it.
_NO_SANDBOX = (b"Running as root without --no-sandbox", b"No usable sandbox!")


def print_pdf(page: str, warn: Callable[[str], None]) -> bytes:
    """The page on paper; it loads nothing, so the browser has nothing to fetch.

    A page of somebody else's run is printed in the browser's sandbox, unless that cannot start here.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise BadInput("no Chromium was found to print with; install chromium or google-chrome, or open the html "
                       "report in any browser and print it.")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8", errors="backslashreplace")
        printing = [browser, *_FLAGS, f"--user-data-dir={folder}/profile", f"--print-to-pdf={target}", source.as_uri()]
        errors = _print(printing, folder)
        if not target.is_file() and any(reason in errors for reason in _NO_SANDBOX):
            warn(f"the sandbox of {browser} cannot start here, as for root, so the page was printed without it")
            _print([*printing, "--no-sandbox"], folder)
        if target.is_file():
            return target.read_bytes()
    raise RuntimeFailure(f"{browser} printed nothing; open the html report in a browser and print it.")


def _print(command: Sequence[str], home: str) -> bytes:
    """What the browser says while it prints; it leaves its files in a home that is removed afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment["HOME"] = home
    try:
        printed = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, env=environment)
        return printed.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"{command[0]} did not print ({type(error).__name__})"
        raise RuntimeFailure(f"{problem}; print the html report.") from None
