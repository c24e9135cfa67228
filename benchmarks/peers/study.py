"""What is asked of the peers: do they agree, how long do they take, how does it grow, what does a known error cost."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.protocols import PRESETS
from benchmarks.peers.jobs import Bench, Case
from benchmarks.peers.turns import AUTO, OURS, Figure, Worker, in_turns

PROTOCOLS = {
    "paper": "paper-code", "rise": "rise", "torchcam": "torchcam", "xplique": "xplique", "openvino": "openvino",
    "openvino-f32": "openvino",
}  # fmt: skip
MAIN = Case(32, 1, 48)
GROWTH = {
    "images": (Case(8, 1, 48), MAIN, Case(128, 1, 48)),
    "labels": (Case(8, 1, 48), Case(8, 2, 48), Case(8, 10, 48)),
    "points": (Case(8, 1, 12), Case(8, 1, 48), Case(8, 1, 192)),
}
AGREEING = Case(8, 2, 28)  # points that do not divide the pixels
WITHIN, SHARE = 5e-3, 0.95
EXACT = {  # the protocol whose curve, a step a pixel, has the peer's infill
    "paper": "xplique", "torchcam": "xplique", "xplique": "xplique", "dianna": "xplique", "quantus": "xplique",
    "rise": "rise", "openvino": "openvino", "openvino-f32": "openvino",
}  # fmt: skip


def timed(bench: Bench, workers: Mapping[str, Worker], batches: Mapping[str, int], case: Case,
          repeats: int) -> dict[str, Figure]:  # fmt: skip
    """Everybody on one case."""
    return in_turns(workers, {name: asked(bench, name, batches, case) for name in workers}, repeats)


def asked(bench: Bench, name: str, batches: Mapping[str, int], case: Case) -> Figure:
    """What one worker is sent for a case."""
    more = {"settings": {"labels": f"top{case.labels}"}} if name == OURS else {}
    return {**bench.asked(case), "batch": batches[name], **more}


def agreement(bench: Bench, workers: Mapping[str, Worker], batches: Mapping[str, int]) -> dict[str, Figure]:
    """The largest difference of a curve's area between a peer and auditkit under its protocol."""
    found = {}
    for name, worker in workers.items():
        if name in PROTOCOLS:
            theirs = worker.ask(**asked(bench, name, batches, AGREEING), alone=True)["areas"]
            ours = _ours(bench, workers, AGREEING, protocol=PROTOCOLS[name])["areas"]
            found[name] = {"protocol": PROTOCOLS[name], "curves": len(ours), "of": "areas",
                           "largest": _largest(theirs, ours)}  # fmt: skip
    if "dianna" in workers:
        answer = _ours(bench, workers, AGREEING)
        areas = [np.trapezoid(values, np.array(counts) / counts[-1])
                 for values, counts in zip(answer["curves"], answer["keep_counts"], strict=True)]  # fmt: skip
        theirs = workers["dianna"].ask(**asked(bench, "dianna", batches, AGREEING), areas=True)["areas"]
        found["dianna"] = {"protocol": None, "curves": len(areas), "of": "areas", "largest": _largest(theirs, areas)}
    if "quantus" in workers:  # every third of its points has whole pixels, and its curve lacks the whole image
        case = Case(AGREEING.images, AGREEING.labels, 48)
        theirs = workers["quantus"].ask(**asked(bench, "quantus", batches, case), areas=True)["curves"]
        curves = _ours(bench, workers, Case(case.images, case.labels, case.points // 3))["curves"]
        found["quantus"] = {"protocol": None, "curves": len(curves), "of": "points of the curves",
                            "largest": _largest(theirs, [one[:-1] for one in curves])}  # fmt: skip
    return found


def _ours(bench: Bench, workers: Mapping[str, Worker], case: Case, **settings: Any) -> Figure:
    labels = "all" if settings.get("protocol") == "paper-code" else f"top{case.labels}"
    request = {**bench.asked(case), "batch": 0, "settings": {"labels": labels, **settings}}
    return workers[OURS].ask(**request, areas=True)


def _largest(a: Any, b: Any) -> float:
    return float(f"{np.abs(np.array(a) - np.array(b)).max():.3g}")


def known_error(bench: Bench, workers: Mapping[str, Worker], batches: Mapping[str, int], images: int,
                repeats: int) -> Figure:  # fmt: skip
    """Seconds to areas of which 95 % are within 5e-3 of the exact: everybody at the fewest points that give that.

    The fewest are found by looking at the exact curves, which nobody has who needs to ask; hence auditkit's own choice
    beside, which knows the error of each curve without them.
    """
    whole = Case(images, 1, bench.pixels)
    wanted = sorted({EXACT[name] for name in workers if name != OURS} | {"xplique"})
    exact = {name: np.array(_ours(bench, workers, whole, protocol=name)["curves"]) for name in wanted}
    needed = {name: fewest(name, exact[EXACT.get(name, "xplique")], bench.pixels) for name in workers}
    requests = {name: asked(bench, name, batches, Case(images, 1, points)) for name, points in needed.items()}
    requests[AUTO] = {**asked(bench, OURS, batches, whole), "points": "auto"}
    answer = workers[OURS].ask(**requests[AUTO], areas=True)
    off = np.abs(np.array(answer["areas"]) - exact["xplique"][:, 1:].mean(axis=1))
    found = in_turns({**workers, AUTO: workers[OURS]}, requests, repeats)
    needed[AUTO] = round(float(np.mean([len(counts) for counts in answer["keep_counts"]])))
    for name, points in needed.items():
        found[name]["points"] = points
    found[AUTO]["error95"] = float(f"{np.quantile(off, SHARE):.3g}")
    return {"within": WITHIN, "share": SHARE, "images": images, "labels": 1, "peers": found}


def fewest(name: str, curves: Array, pixels: int) -> int:
    """Points at which a peer's rule is near enough; its own counts and its own way to take the area."""
    exact = curves[:, 1:].mean(axis=1)
    for points in _choices(name, pixels):
        if np.quantile(np.abs(areas(name, curves, points) - exact), SHARE) <= WITHIN:
            return points
    return pixels


def areas(name: str, curves: Array, points: int) -> Array:
    """What a peer would say of curves that are known at every pixel."""
    pixels = curves.shape[1] - 1
    rule = PRESETS[PROTOCOLS.get(name, "xplique")].with_steps(points).insertion
    counts = rule.counts(pixels)
    return rule.area(counts, curves[:, counts])


def _choices(name: str, pixels: int) -> list[int]:
    """Numbers of points that a peer can be given, ascending."""
    if name == "quantus":
        return [3 * points for points in range(1, pixels // 3) if pixels % points == 0]
    return list(range(4, pixels))
