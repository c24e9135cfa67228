"""What a lower precision changes: in every metric of the same maps, and in the metrics of masks learned in it."""

from dataclasses import replace
from typing import Any

from auditkit.data.bundles import HeatmapSet
from auditkit.model.classifier import OnnxClassifier
from benchmarks.paper.work import Figure, Study, change, first

STRICT, HALF, LOWER = "strict", "float16", ("tf32", "float16")
MAPS = {"ours": "mask", "gradient-input": "gradient-input"}
KEY = ("name", "bundle", "infill")
LEARNED = ("insertion", "deletion", "worst_completeness", "worst_soundness", "best_effort")
POINTS = "64"  # the same for all, so that nothing but the precision differs


def measured(study: Study, few: int) -> dict[str, Any]:
    """The table of the metrics over all images, and of masks learned anew for a few of them."""
    maps = {name: study.made(name, method, "top2") for name, method in MAPS.items()}
    by = {precision: _figures(_in(study, precision), maps) for precision in (STRICT, *LOWER)}
    changes = {precision: _changes(by[STRICT], by[precision]) for precision in LOWER}
    return {"precisions": changes, "masks_in_half": _masks(study, maps["ours"], few)}


def _in(study: Study, precision: str) -> Study:
    """The same study with the model in another precision."""
    model = study.model
    other = OnnxClassifier(model.file, model.signature, model.card, replace(model.requested, precision=precision))
    return study.beside(precision, model=other)


def _figures(study: Study, maps: dict[str, HeatmapSet]) -> dict[tuple[str, ...], float]:
    told = study.scored("metrics", maps, labels="top2", infill=("gray", "blur"), saliency="both", steps=POINTS)
    every = [*told["metrics"], *told["controls"]]
    return {tuple(one[key] for key in KEY): one["value"] for one in every if one["value"] is not None}


def _changes(strict: dict[tuple[str, ...], float], other: dict[tuple[str, ...], float]) -> list[Figure]:
    """By metric, over bundles, controls and infills: the mean difference from strict float32, and the largest."""
    found = list[Figure]()
    for name in dict.fromkeys(key[0] for key in strict):
        by = [abs(other[key] - value) for key, value in strict.items() if key[0] == name]
        found.append({"name": name, "figures": len(by), "mean": sum(by) / len(by), "largest": max(by)})
    return found


def _masks(study: Study, maps: HeatmapSet, few: int) -> list[Figure]:
    """How masks that were learned in half precision score beside the others, both in strict float32.

    And how masks learned with other draws do, to tell what chance changes from what the precision does.
    """
    some, half = first(study.images, few), _in(study, HALF)
    ways = {"half": half.made("ours", "mask", "top2", some), "draws": study.made("draws", "mask", "top2", some, seed=1)}
    study.account |= {f"{name} in half": took for name, took in half.account.items()}
    results = _in(study, STRICT).scored("masks", {**ways, "usual": maps}, some, labels="top2", saliency="none",
                                        steps=POINTS)  # fmt: skip
    return [change(results, name, way, "usual", "gray") for way in ways for name in LEARNED]
