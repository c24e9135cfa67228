import os

import pytest

from auditkit.model import device


def _logged(kind: str, *, record_machine: bool) -> str:
    return device.location(kind).as_logged(2, record_machine=record_machine)


def test_the_log_tells_gpus_of_one_name_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "gpu_names", lambda: ["A GPU (8 GiB)"])
    monkeypatch.setenv(device.VISIBLE_GPUS, "3")
    assert _logged("cuda", record_machine=True).endswith(f", process {os.getpid()} on GPU 3, A GPU (8 GiB)")
    assert _logged("cuda", record_machine=False) == "worker 2 on GPU 3, A GPU (8 GiB)"
    assert "GPU" not in _logged("cpu", record_machine=True)
    monkeypatch.delenv(device.VISIBLE_GPUS)
    assert _logged("cuda", record_machine=True).endswith(f", process {os.getpid()}, A GPU (8 GiB)")
