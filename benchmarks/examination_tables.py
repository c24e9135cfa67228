"""Tables and the plot of examinations: of models whose cue is known, and of models in use."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.records import from_json
from auditkit.report.markdown import table
from auditkit.report.svg import Axis
from auditkit.runs.folder.examination import ExchangeRate, Finding
from auditkit.runs.folder.examination_run import ExaminationRun
from benchmarks.drawing import MARKS, page

SHOWN = ("surround", "frame", "medium window", "small window", "mean colour", "fine residual")  # of the exchanges
NO_CUE = "none"
ANSWERS = (("right", "clean"), ("near",), ("missed", "other", "false alarm"))
MOST = 9.0  # % of the images, along the plot


def examination_table(found: dict[str, Any]) -> str:
    """How often each cue is named, and how rare a mark may be."""
    rows = [[row["part"], row["cue"], str(row["images"]), f"{row['right']} of {row['runs']}",
             "" if row["pointing"] is None else f"{row['pointing']:.0%}", ", ".join(row["others"])]
            for row in found["rows"]]  # fmt: skip
    head = ["part", "cue", "images", "named rightly", "strongest square on it", "other findings"]
    parts = [
        "Networks with a planted cue, and honest ones (`none`), where right is to find nothing. Limits were chosen by "
        "the part `chosen`.",
        table(["part", "networks", "named rightly", "95 % interval"], [_total(total) for total in found["totals"]]),
        table(head, rows),
    ]
    if found.get("rare"):
        rows = [[f"{row['share']:.0%}", f"{row['of_all']:.1%}", f"{row['with_cue']:.1f}",
                 f"{row['right']} of {row['runs']}", f"{row['low']:.0%} to {row['high']:.0%}"]
                for row in found["rare"]]  # fmt: skip
        head = ["of the class's images have the logo", "of all images", "images, mean", "found", "95 % interval"]
        parts += ["How rare a logo may be: the five networks that rely on one, with fewer images that have it.",
                  table(head, rows)]  # fmt: skip
    return "\n\n".join(parts)


def _total(total: dict[str, Any]) -> list[str]:
    return [total["part"], "honest" if total["honest"] else "with a cue", f"{total['right']} of {total['runs']}",
            f"{total['low']:.0%} to {total['high']:.0%}"]  # fmt: skip


def plot(rare: Sequence[dict[str, Any]]) -> str:
    """The share of examinations that find a logo, against the share of the images that have it."""
    rows = np.array([[100 * row["of_all"], row["right"] / row["runs"], row["low"], row["high"]] for row in rare], float)
    axes = Axis(0, MOST, "% of the images have the logo"), Axis(0, 1, "found, of the examinations")
    return page([("A rare logo", *axes, [("95 % intervals", *MARKS[0], rows)])])


def of_models(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """What `auditkit examine` wrote into these folders."""
    rows = []
    for folder in folders:
        run = from_json(ExaminationRun, json.loads((folder / "examination.json").read_bytes()), "examination")
        found = run.examination
        rows.append({
            "model": Path(run.subject.model.path).name, "device": run.environment["device"], "seed": run.seed,
            "images": found.images, "proposals": found.proposals, "findings": [_finding(one) for one in found.findings],
            "rates": {rate.exchange: _rate(rate) for rate in found.rates},
            "probes": {probe.probe: round(probe.agrees, 3) for probe in found.probes},
        })  # fmt: skip
    return rows


def _finding(finding: Finding) -> dict[str, Any]:
    keys = (
        "kind",
        "exchange",
        "place",
        "label",
        "follows",
        "low",
        "high",
        "chance",
        "limit",
        "n",
        "images",
        "severity",
    )
    values = {key: getattr(finding, key) for key in keys}
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}


def _rate(rate: ExchangeRate) -> list[float]:
    return [round(rate.follows, 3), round(rate.stays, 3), round(rate.chance, 3)]


def models_table(found: dict[str, Any]) -> str:
    """Findings of each model, and how often the prediction follows some parts."""
    head = ["model", "images", "proposals", "findings", *(f"follows {exchange}" for exchange in SHOWN)]
    rows = [[row["model"], str(row["images"]), str(row["proposals"]), "; ".join(map(_said, row["findings"])) or "none",
             *(f"{row['rates'][exchange][0]:.0%}" for exchange in SHOWN)] for row in found["models"]]  # fmt: skip
    times = [f"{what}: {seconds:.0f} s." for what, seconds in found.get("seconds", {}).items()]
    return "\n\n".join([table(head, rows), *times])


def _said(finding: dict[str, Any]) -> str:
    label = "" if finding["label"] is None else f" of label {finding['label']}"
    interval = f"{finding['low']:.0%} to {finding['high']:.0%}; " if finding["low"] is not None else ""
    return f"{finding['kind']}{label}: {finding['follows']:.0%} ({interval}limit {finding['limit']:.0%})"


def blind_table(found: dict[str, Any]) -> str:
    """Answers about networks of another make by cue, and every one that is not right."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in found["rows"]:
        groups.setdefault((_group(row), row["cue"]), []).append(row["answer"])
    counts = [[group, cue, *(str(sum(map(answers.count, words))) for words in ANSWERS)]
              for (group, cue), answers in sorted(groups.items())]  # fmt: skip
    others = [[row["set"], row["cue"], f"{row['base']}, {row['side']} pixels", _share(row["follow"]), row["answer"],
               "; ".join(map(_named, row["findings"])) or f"none; {row['strongest'][0]}"]
              for row in found["rows"] if row["answer"] not in ANSWERS[0]]  # fmt: skip
    head = ["images", "cue", "of", "follows the cue", "answer", "finding, or the exchange that is followed most"]
    summary = table(["network", "cue", "right", "near", "missed or wrong"], counts)
    return "\n\n".join([summary, "All that are not right:", table(head, others)])


def _group(row: dict[str, Any]) -> str:
    if row["cue"] == NO_CUE:
        return "honest"
    return "relies on the cue" if row["kept"] else "relies on the cue less"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _named(finding: dict[str, Any]) -> str:
    label = "" if finding["label"] is None else f" of label {finding['label']}"
    return f"{finding['kind']}{label}: {finding['follows']:.0%}"
