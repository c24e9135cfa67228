"""Maps without any gradient beside those of the gradient path: as good, at how many passes?

On small images beside learned masks of a grid as coarse (upsampled by 4); on photographs beside RISE at as many passes
and the controls, where learning masks for all would take long.
"""

from typing import Any

from auditkit.metrics.faithfulness import EPS1, EPS2
from benchmarks.paper.claims import NEAR, judged
from benchmarks.paper.work import Figure, Study, change, figure

SMALL = 64  # pixels a side, up to which 1,024 passes are enough
COLUMNS = ("insertion", "worst_completeness", "worst_soundness", "best_effort")
CONTROLS = ("random", "centred-gaussian", "edges", "blurred-edges", "noisy-gaussian", "noisy-edges")


def measured(study: Study) -> dict[str, Any]:
    """The table and the claims."""
    small = study.model.signature.height <= SMALL
    # All passes that there are, as RISE takes them: none is saved where maps agree early.
    maps = {"differences": study.made("differences", "differences", "top2", tolerance=0.0),
            "rise": study.made("rise", "rise", "top2")}  # fmt: skip
    if small:
        maps["mask s=4"] = study.made("mask s=4", "mask", "top2", factor=4)
    results = study.scored("differences", maps, labels="top2", eps1=EPS1, eps2=EPS2, deletion=False, saliency="none")
    sources = {**{name: name for name in maps}, **{name: f"control:{name}" for name in CONTROLS}}
    table = [figure(results, column, source, "gray") | {"row": row}
             for row, source in sources.items() for column in COLUMNS]  # fmt: skip
    passes = study.account["differences"]["passes"] / len(study.images)
    claims = _beside_masks(results) if small else _beside_rise(results)
    return {"claims": claims, "differences": table, "passes_an_image": passes}


def _beside_masks(results: Any) -> list[Figure]:
    complete, sound = (change(results, name, "differences", "mask s=4", "gray") for name in COLUMNS[1:3])
    return [
        judged("differences are nearly as complete as learned masks", complete, "above", -NEAR),
        judged("and no less sound", sound, "above"),
    ]


def _beside_rise(results: Any) -> list[Figure]:
    others = {"RISE at as many passes": "rise", **{f"the control {name}": f"control:{name}" for name in CONTROLS}}
    return [judged(f"differences beat {words}", change(results, "worst_completeness", "differences", other, "gray"),
                   "above") for words, other in others.items()]  # fmt: skip
