"""The paper's tables on CIFAR-10.

Masks are learned over other test images, at the images' own resolution, with several weights of the penalty on their
variation. Three tables: completeness and soundness of the two likeliest labels, over gray and over other images; the
same of all labels with areas over 0.2 to 0.6 of the pixels; and the metrics of the predicted label alone, beside
gradients and noise. Masks take so many steps that their loss has settled, which `settling` looks at.
"""

from typing import Any

from benchmarks.paper import claims, published
from benchmarks.paper.published import TV
from benchmarks.paper.work import INFILLS, Figure, Study, change, figure, first

BLUR = "blur:5"  # as wide as usual for large images, which leaves nothing of a small one
COLUMNS = (("deletion", "gray"), ("insertion", BLUR), ("insertion", "gray"), ("saliency_metric_tuned", "gray"))
BARE: dict[str, Any] = {"deletion": False, "saliency": "none"}


def measured(study: Study, all_labels: int) -> dict[str, Any]:
    """All tables, over all labels for so many images (0: not)."""
    maps = {f"tv{tv:g}": study.made(f"tv{tv:g}", "mask", "top2", tv=tv) for tv in TV}
    few = first(study.images, all_labels)
    if all_labels:  # before anything is scored: an evaluation goes on only where its maps are as they were
        maps = {f"tv{tv:g}": study.made(f"tv{tv:g}", "mask", "all", few, tv=tv) for tv in TV}
    found = {**_top_two(study, maps), "intrinsic": _intrinsic(study, maps)}
    return found | ({"partial": _partial(study, maps, few)} if all_labels else {})


def _top_two(study: Study, maps: dict[str, Any]) -> dict[str, list[Figure]]:
    """What is claimed of the weights, and their table."""
    results = study.scored("top-two", maps, labels="top2", eps1=0.0, eps2=0.1, infill=tuple(INFILLS), **BARE)
    return {"claims": claims.of_weights(results, study.steps), "top_two": _by_weight(results, published.TOP_TWO)}


def _partial(study: Study, maps: dict[str, Any], few: Any) -> list[Figure]:
    settings: dict[str, Any] = {
        "labels": "all",
        "eps1": 0.01,
        "eps2": 0.1,
        "range": (0.2, 0.6),
        "infill": "gray",
        **BARE,
    }
    return _by_weight(study.scored("partial", maps, few, **settings), published.PARTIAL)


def _by_weight(results: Any, paper: published.Published) -> list[Figure]:
    """Figures of every weight, the paper's beside, and how they differ from those without a penalty."""
    found = []
    for (infill, name), theirs in paper.items():
        for tv, value in zip(TV, theirs, strict=True):
            one = figure(results, name, f"tv{tv:g}", infill) | {"tv": tv, "paper": value}
            if tv:
                one["less_tv0"] = change(results, name, f"tv{tv:g}", "tv0", infill)
            found.append(one)
    return found


def _intrinsic(study: Study, maps: dict[str, Any]) -> list[Figure]:
    """Metrics that look at the predicted label alone."""
    rows = {"gradient-input": study.made("gradient-input", "gradient-input", "top1"), "ours TV 0.01": maps["tv0.01"],
            "ours TV 0": maps["tv0"], "smoothgrad": study.made("smoothgrad", "smoothgrad", "top1")}  # fmt: skip
    results = study.scored("intrinsic", rows, labels="top1", infill=("gray", BLUR), saliency="both")
    found = []
    for row, theirs in published.INTRINSIC.items():
        for (name, infill), value in zip(COLUMNS, theirs, strict=True):
            source = row if row in rows else f"control:{row}"
            found.append(figure(results, name, source, infill) | {"row": row, "paper": value})
    return found
