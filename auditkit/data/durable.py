"""Writes that are still there after the power has gone."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk; elsewhere than on POSIX systems a folder cannot be flushed."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
