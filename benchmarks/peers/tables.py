"""Markdown from the results."""

from typing import Any

from auditkit.runs.evaluation.runtime_check import STEPS
from benchmarks.peers.turns import AUTO, OURS

Figure = dict[str, Any]
NAMES = {
    "auditkit": "auditkit", "paper": "the paper's loop", "rise": "RISE's loop", "torchcam": "torchcam",
    "quantus": "Quantus", "xplique": "Xplique", "openvino": "OpenVINO-XAI", "openvino-f32": "OpenVINO-XAI, float32",
    "dianna": "DIANNA's runner",
}  # fmt: skip

CHECKED = 3 * 2 * (STEPS + 1)  # the curves of two maps, twice and once more
CHECKING = (
    f"auditkit's seconds hold {CHECKED} rows more than are counted, which check the runtime: a sample is asked twice, "
    "and once more in strict float32. The others check nothing. About a third of its start-up is a child process in "
    "which an unknown file is opened first, under limits, and most of the rest imports; the others open it at once. "
    "OpenVINO takes a lower precision by itself where the processor has one: the largest difference above shows it."
)


def markdown(found: Figure) -> str:
    """All tables of a result."""
    parts = [_main(found), _growth(found), *([_large(found["pixels"])] if "pixels" in found else [])]
    parts.append(_left_out({**found["skipped"], **found.get("failed", {})}))
    return "\n\n".join(part for part in parts if part)


def _left_out(why: dict[str, str]) -> str:
    """Who is not in the tables, and why."""
    told = "; ".join(f"{NAMES[name]}: {reason.rstrip('.')}" for name, reason in why.items())
    return f"Left out: {told}." if told else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines)


def _main(found: Figure) -> str:
    head = ["", "rows/s", "seconds", "× ours", "rows per CPU second", "CPU × ours", "to a known error: points",
            "seconds", "× ours", "start-up s", "MB", "largest difference"]  # fmt: skip
    rows = []
    for name, one in found["main"]["peers"].items():
        known, start = found["known_error"]["peers"][name], found["start_up"][name]
        rows.append([
            NAMES[name], f"{one['rows_s']:.0f}", f"{one['seconds']:.3g}", times(name, one), f"{one['rows_cpu_s']:.0f}",
            f"{one['times_the_cpu']:.2f}", f"{known['points']:g}", f"{known['seconds']:.3g}", times(name, known),
            f"{start['seconds']:.2f}", f"{start['peak_mb']}", _difference(found["agreement"].get(name)),
        ])  # fmt: skip
    auto = found["known_error"]["peers"][AUTO]
    rows.append(["auditkit, steps auto", "", "", "", "", "", f"{auto['points']:g}", f"{auto['seconds']:.3g}",
                 f"{auto['times_slower']:.2f}", "", "", ""])  # fmt: skip
    return f"{found['model']}, {found['main']['case']}:\n\n" + _table(head, rows)


def times(name: str, one: Figure) -> str:
    """How much longer than auditkit."""
    return "1" if name == OURS else f"{one['times_slower']:.2f}"


def _difference(one: Figure | None) -> str:
    return "" if one is None else f"{one['largest']:.1g} ({one['protocol'] or 'points'})"


def _growth(found: Figure) -> str:
    cases = [(what, case) for what, some in found["growth"].items() for case in some]
    head = ["seconds", *(f"{case['case'][what]} {what}" for what, case in cases)]
    rows = [[NAMES[name], *(f"{case['peers'][name]['seconds']:.3g}" for _, case in cases)]
            for name in found["main"]["peers"]]  # fmt: skip
    return "How it grows:\n\n" + _table(head, rows)


def _large(found: Figure) -> str:
    rows = [[NAMES[name], f"{one['rows_s']:.1f}", f"{one['seconds']:.3g}", times(name, one)]
            for name, one in found["peers"].items()]  # fmt: skip
    drawn = _table(["", "rows/s", "seconds", "× ours"], rows)
    parts = [f"{found['model']}, {found['case']}:", drawn, CHECKING, _left_out(found.get("failed", {}))]
    return "\n\n".join(part for part in parts if part)
