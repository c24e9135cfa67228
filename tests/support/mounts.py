"""What the system says is mounted where tests write: their machine may be a container, all of it an overlay."""

import os
from pathlib import Path

import pytest

from auditkit.data import file_digests


def pretend(patch: pytest.MonkeyPatch, folder: Path, kind: str = "ext4", options: str = "rw") -> None:
    """Let a folder, and all else on its device, lie on a file system of that kind; the next device has one, too."""
    device = folder.stat().st_dev
    places = [f"{os.major(number)}:{os.minor(number)}" for number in (device, device + 1)]
    lines = [f"29 1 {place} / /data ro,relatime shared:1 - {kind} /dev/sda1 {options}\n" for place in places]
    (folder / "mountinfo").write_text("".join(lines))
    patch.setattr(file_digests, "_MOUNTS", folder / "mountinfo")
