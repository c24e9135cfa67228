"""Tables of results: the page that is read is the one that the results make."""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kernels, memory, reporting, tables
from benchmarks.paper import claims

FOLDER = Path(tables.__file__).parent


def test_the_page_comes_from_the_results() -> None:
    """If this fails: python -m benchmarks.tables benchmarks/results > benchmarks/README.md."""
    assert (FOLDER / "README.md").read_text() == tables.markdown(FOLDER / "results")


def test_every_file_of_results_is_on_the_page() -> None:
    page = (FOLDER / "README.md").read_text()
    for path in (FOLDER / "results").glob("*.json"):
        assert f"({path.name})" in page, path.name
        found = json.loads(path.read_bytes())
        assert {"date", "machine"} <= set(found), path.name
        assert all("command" in one for one in found.get("runs", [found])), path.name


def test_every_claim_that_is_not_shown_has_a_remark() -> None:
    claimed = [one for path in (FOLDER / "results").glob("*.json") for one in _claims(path) if not one["holds"]]
    assert claimed
    assert not {one["claim"] for one in claimed} - set(claims.REMARKS)


def _claims(path: Path) -> Any:
    return json.loads(path.read_bytes()).get("claims", [])


def test_the_figures_on_the_front_page_are_those_of_the_results() -> None:
    def found(name: str) -> Any:
        return json.loads((FOLDER / "results" / f"{name}.json").read_bytes())

    gpu = found("evaluate-h200")
    steps = {line["masks"]: line for line in found("explain-h200")["lines"] if line["precision"] == "tf32"}
    ours = {
        (one["infill"], one["name"]): one["value"] for one in found("paper-cifar10")["top_two"] if one["tv"] == 0.01
    }
    half = [one["mean"] for one in found("paper-precision")["precisions"]["float16"]]
    expected = [
        [f"{mode['ratio']:.3f}" for mode in gpu["modes"]],
        [f"{times:#.2g}".rstrip(".") for times in found("evaluate-h200-peers")["times_peers"].values()],
        [f"{steps[masks]['times_peers']['eager']:.1f}" for masks in (1, 16, 64)],
        [f"{statistics.median(half):.4f}", f"{max(half):.4f}"],
        ["{value:.2f} ({low:.2f} to {high:.2f})".format(**found("paper-cost")["cost"][-1])],
        [f"{found(name)['modes'][0]['ratio']:.3f}" for name in ("evaluate-cpu", "evaluate-cpu-mobilenet")],
        [f"{line['times_peers']['eager']:.1f}" for line in found("explain-cpu")["lines"]],
        [f"{ours['gray', name]:.2f}" for name in ("worst_completeness", "worst_soundness")],
    ]
    page = (FOLDER.parent / "docs" / "guide.md").read_text()
    lines = [line.split(" | ")[2] for line in page.split("## Measured")[1].splitlines() if line.endswith("json` |")]
    assert lines == [", ".join(one) for one in expected]


def test_a_command_is_told_without_places(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--images=640", "torchcam=/opt/a/bin/python", "--assets", "/data/assets", "--plot=/data/p.svg"]
    monkeypatch.setattr(sys, "argv", ["bench", *given])
    told = ["--images=640", "torchcam=PYTHON", "--assets", "assets", "--plot=p.svg"]
    assert reporting.origin("bench")["command"] == ["python", "-m", "bench", *told]


def test_a_step_of_learning_stands_beside_torch() -> None:
    line = {"precision": "tf32", "masks": 1, "pixels": 224, "rows_s": 2500.0, "step": {"auditkit": {"ms": 4.0}},
            "times_peers": {"eager": 2.3, "compile": 1.7}}  # fmt: skip
    drawn = tables.learning({"network": "resnet50", "distractors": 10, "lines": [line]})
    assert "| tf32 | 1 | 224 | 4 | 2,500 | 2.30 | 1.70 |" in drawn


def test_kernels_are_told_apart_by_their_names() -> None:
    seen = {
        "void onnxruntime::cuda::_UnaryElementWise<__half, __half, onnxruntime::cuda::OP_Relu<__half>": (3.0, 49.0),
        "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": (1.25, 16.0),
        "nvjet_sm90_hsh_256x128_64x4_1x2_h_ssched_bz_coopA_TNT": (0.5, 10.0),
        "void onnxruntime::cuda::_PadKernel<__half, 0>(unsigned long": (4.5, 4.0),
        "void cudnn::pooling_fw_kernel_max_nhwc<__half, float, 3": (0.25, 1.0),
        "triton_poi_fused__native_batch_norm_legit_no_training_add_relu_8": (0.75, 3.0),
        "void op_generic_tensor_kernel<4, __half>(cudnnTensorStruct, reducedDivisorArray)": (0.375, 2.0),
        "something new": (0.125, 1.0),
    }
    found = kernels.summary(seen)
    assert list(found["kinds_ms"].values()) == [4.5, 0.25, 1.75, 4.125, 0.125]
    assert (found["kernels_ms"], found["launches"]) == (10.75, 86)
    assert [one["ms"] for one in found["longest"]] == sorted((ms for ms, _ in seen.values()), reverse=True)
    line = {"what": "bare session", "precision": "float16", "rows": 256, "ms": 11.69, "rows_s": 21899, **found}
    quicker = line | {
        "what": "torch.compile",
        "ms": 9.5,
        "kinds_ms": dict(found["kinds_ms"], **{next(iter(kernels.KINDS)): 4.0}),
    }
    drawn = tables.kernels({"model": "x", "lines": [line, quicker]})
    assert drawn.endswith("less torch.compile, float16: +2.2 ms; +0.5 of layout and copies.")
    assert "| bare session | float16 | 256 | 11.7 | 21,899 | 86 | 4.5 |" in drawn


def test_the_most_of_a_devices_memory_is_what_was_in_use_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([2**30, *[2**31] * 3])
    monkeypatch.setattr(memory, "in_use", lambda: next(used, 2**29))
    with memory.watched() as seen:
        while len(seen) < 6:
            time.sleep(memory.PAUSE)
    assert max(seen) == 2**31
    line = {"verb": "evaluate", "allowed_gib": 3.25, "most_gib": 2.859, "exit": 0}
    assert "| evaluate | 3.25 | 2.86 | 0 |" in memory.memory_table({"model": "x", "images": 16, "lines": [line]})
