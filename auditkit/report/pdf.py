"""Prints a page as PDF with a Chromium that is installed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from auditkit.errors import BadInput, RuntimeFailure

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = ("--headless", "--disable-gpu", "--no-pdf-header-footer", "--disable-background-networking",
          "--disable-component-update", "--disable-sync")  # fmt: skip
_SECONDS = 120


def print_pdf(page: str) -> bytes:
    """The page on paper; it loads nothing, so the browser has nothing to fetch."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise BadInput("no Chromium was found to print with; install chromium or google-chrome, or open the html "
                       "report in any browser and print it.")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8", errors="backslashreplace")
        printing = [browser, *_FLAGS, f"--user-data-dir={folder}/profile", f"--print-to-pdf={target}", source.as_uri()]
        for flags in ([], ["--no-sandbox"]):  # root has no sandbox; the page may run no script
            try:
                subprocess.run([*printing, *flags], capture_output=True, timeout=_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise RuntimeFailure(
                    f"{browser} did not print ({type(error).__name__}); print the html report."
                ) from None
            if target.is_file():
                return target.read_bytes()
    raise RuntimeFailure(f"{browser} printed nothing; open the html report in a browser and print it.")
