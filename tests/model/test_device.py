import os

import pytest

from auditkit.model import device


def test_the_log_tells_gpus_of_one_name_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "gpu_names", lambda: ["A GPU (8 GiB)"])
    monkeypatch.setenv(device.VISIBLE_GPUS, "3")
    assert device.location("cuda").endswith(f", process {os.getpid()} on GPU 3, A GPU (8 GiB)")
    assert "GPU" not in device.location("cpu")
    monkeypatch.delenv(device.VISIBLE_GPUS)
    assert device.location("cuda").endswith(f", process {os.getpid()}, A GPU (8 GiB)")
