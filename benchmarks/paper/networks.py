"""Trained masking networks beside learned masks, on CIFAR-10: those rows of the paper's main table that ship a network.

The networks are `maskers.py`'s, small and trained here, so that the rows show what such a method does, not how far it
can be taken; the paper's figures beside them are of others, on photographs.
"""

from pathlib import Path
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.claims import judged
from benchmarks.paper.imagenet import rows
from benchmarks.paper.work import Study, change

OURS_TV = 0.01
COLUMNS = ("worst_completeness", "best_effort")


def measured(study: Study, folder: Path) -> dict[str, Any]:
    """The rows, and whether one mask for all labels is exposed."""
    maps = {name: study.made(name, "masker", "top2", path=folder / f"{name}.onnx") for name in published.NETWORKS}
    maps["ours"] = study.made(f"tv{OURS_TV:g}", "mask", "top2", tv=OURS_TV)
    results = study.scored("networks", maps, labels="top2", saliency="both")
    complete, effort = (change(results, name, "ours", "by-image", "gray") for name in COLUMNS)
    told = [
        judged("learned masks are more complete than a network's one mask for all labels", complete, "above"),
        judged("best effort exposes it", effort, "above"),
    ]
    return {"claims": told, "two": rows(results, published.NETWORKS)}
