"""The paper's main table, on photographs: its rows and columns, corner crops, the cheat, randomisation, ensembles."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from auditkit.data.bundles import HeatmapSet
from auditkit.data.dataset import Dataset
from auditkit.records import to_json
from auditkit.runs.explain import Explanation
from auditkit.runs.randomisation import randomisation
from benchmarks.paper import claims, published
from benchmarks.paper.work import FAITHFUL, Figure, Study, corners, figure, first

Row = tuple[str, dict[str, Any]]  # a method and its options
OURS: Row = ("mask", {})
SHARP = claims.SHARP  # not in the paper's table: does upsampling do more where the penalty is small?
ROWS: dict[str, Row] = {
    "gradient-input": ("gradient-input", {}), "igos++": ("igos++", {}), "fong": ("fong", {}), "ours": OURS,
    "ours s=1": ("mask", {"factor": 1}), "ours TV 0.001": ("mask", {"tv": 0.001}),
    "ours gray": ("mask", {"infill": "gray"}), SHARP: ("mask", {"factor": 1, "tv": 0.001}),
}  # fmt: skip
ON_CORNERS = ("gradient-input", "fong", "ours")
ENSEMBLES = (1, 2, 4)
COLUMNS = ("deletion", "insertion", "saliency_metric_tuned", *FAITHFUL, "best_effort")
CONTROLS = ("random", "centred-gaussian", "one-map:ours")
GRAY = "gray"


def main_table(study: Study) -> dict[str, Any]:
    """Every row over the two likeliest labels."""
    maps = _made(study, ROWS, "top2", study.images)
    two = study.scored("two", maps, labels="top2", saliency="both")
    return {"claims": claims.of_photographs(two) + claims.of_sharpness(two), "two": rows(two, published.PHOTOGRAPHS)}


def wide_table(study: Study) -> dict[str, Any]:
    """The paper's rows over the ten likeliest labels, renormalised."""
    maps = _made(study, [row for row in ROWS if row in published.PHOTOGRAPHS], "top10", study.images)
    ten = study.scored("ten", maps, labels="top10", renormalise=True, saliency="both")
    return {"claims": claims.of_photographs(ten, ", ten labels"), "ten": rows(ten, published.PHOTOGRAPHS)}


def corner_table(study: Study, mapped: int) -> dict[str, Any]:
    """The same over the two likeliest labels of one corner of each photograph, for as many as are to have maps.

    What becomes of the centred bump is looked at on all of them, since it takes no learning.
    """
    cut = study.beside("corners", images=corners(study.images))
    few = first(cut.images, mapped)
    maps = _made(cut, ON_CORNERS, "top2", few)
    study.account |= cut.account
    results = cut.scored("two", maps, few, labels="top2", saliency="both")
    return {
        "claims": claims.of_corners(_bumps(study), _bumps(cut), results),
        "corners": rows(results, published.CORNERS),
    }


def _made(study: Study, wanted: Iterable[str], labels: str, images: Dataset) -> dict[str, HeatmapSet]:
    """The maps of some rows."""
    return {row: study.made(row, ROWS[row][0], labels, images, **ROWS[row][1]) for row in wanted}


def _bumps(study: Study) -> Path:
    """Where the centred bump is measured on all images."""
    maps = {claims.BUMP: study.made(claims.BUMP, claims.BUMP, "top2")}
    study.scored("bumps", maps, labels="top2", deletion=False, saliency="none", controls=False)
    return study.out / "bumps"


def rows(results: Any, paper: published.Published) -> list[Figure]:
    """Every column of every bundle and of the controls that the paper has, its own figures beside."""
    bundles = list(results["run"]["bundles"])
    sources = {**{name: name for name in bundles}, **{name: f"control:{name}" for name in CONTROLS}}
    return [
        figure(results, column, source, GRAY) | {"row": row, "paper": dict(enumerate(paper.get(row, ()))).get(place)}
        for row, source in sources.items() for place, column in enumerate(COLUMNS)
    ]  # fmt: skip


def forgotten(study: Study, count: int, stages: int) -> dict[str, Any]:
    """How alike our maps stay when the model's layers are re-initialised, from the last on."""
    some = first(study.images, count)
    maps = study.made("ours", "mask", "top2")
    what = Explanation("mask", "top2", (("quality", study.quality), ("steps", str(study.steps))))
    found = randomisation(study.model, some, what, study.pool, maps, images_wanted=count, stages=stages, seed=what.seed,
                          out=study.out / "forgotten")  # fmt: skip
    record = to_json(found)
    assert isinstance(record, dict)
    return {"claims": claims.of_forgetting(record), "randomisation": record}


def ensembles(study: Study, count: int) -> dict[str, Any]:
    """Maps that are sums of several disjoint masks, at the images' own resolution, with no penalty on variation."""
    some = first(study.images, count)
    maps = {
        f"K={masks}": study.made(f"K={masks}", "mask", "top2", some, masks=masks, factor=1, l1=2e-5, tv=0.0)
        for masks in ENSEMBLES
    }
    results = study.scored("ensembles", maps, some, labels="top2", saliency="none")
    columns = [column for column in COLUMNS if column in ("deletion", "insertion", *FAITHFUL)]
    return {"ensembles": [figure(results, column, name, GRAY) for name in maps for column in columns]}
