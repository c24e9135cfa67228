"""What the examination says of models whose cue is known.

    python -m benchmarks.examination train -o MODELS [--part chosen|held-out] [--jobs 1]
    python -m benchmarks.examination run MODELS -o FOLDER [--part PART] [--images 120] [--runs 1] [--only tag]
        [--share SHARE]
    python -m benchmarks.examination table FOLDER [--plot FILE.svg]
    python -m benchmarks.examination models FOLDER [FOLDER ...]
    python -m benchmarks.examination null [--runs 1000] [--model MODEL --images IMAGES --maps MAPS [--preset imagenet]]

`train` makes the family by models/train.py; `run` examines every network of MODELS that is there, with images of its
own cue, and goes on where it was cut short; with `--share`, so many images of a class that a cue marks have it. `table`
prints the figures as one JSON object, `models` those of folders that `auditkit examine` wrote. Limits were chosen by
the part `chosen`; the part `held-out` has other styles, networks and sizes. `null` prints how often something is found
where there is nothing to find; with a model, its images and the maps of an examination also for permuted labels.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import auditkit
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.demo.draw import CLASSES
from auditkit.metrics.exchanges import WINDOWS, strongest_window
from auditkit.metrics.statistics import share_interval
from auditkit.runs.examination.run import examine
from auditkit.runs.executor import silent_phase
from auditkit.runs.explain import Explanation
from benchmarks.examination_null import IMAGES, WORLDS, permuted, simulated
from benchmarks.examination_tables import of_models, plot
from benchmarks.reporting import log, origin, printed_at_end
from models.cues import CUES, NO_CUE, Cued, cue_labels, draw_cues

PARTS = ("chosen", "held-out")
NETWORKS = ("plain", "residual", "separable")
HONEST = "none"
# What a finding may be called, by the cue that was planted.
KINDS = {
    "tag": {"corner"}, "stripe": {"place"}, "background": {"background"}, "cast": {"colour"}, "fine": {"fine pattern"},
    "frame": {"border"}, "logo": {"mark"}, "companion": {"mark"}, HONEST: set[str](),
}  # fmt: skip
LOCAL = ("tag", "logo", "companion")  # cues that a square of a heatmap can point at
FIRST_SEED = 500
SHOWN = ("kind", "place", "label", "exchange", "follows", "limit", "severity", "images")  # of a finding


@dataclass(frozen=True)
class Network:
    """One network of the family."""

    part: str
    cue: str
    style: int
    side: int
    network: str
    covered: bool
    nuisances: bool = False

    @property
    def name(self) -> str:
        """Of its file, without the suffix."""
        return f"{self.part}-{self.cue}-{self.style}"


def family() -> list[Network]:
    """All networks: two styles of each cue to choose limits by, three others to report."""
    made = []
    for part, styles in (("chosen", (0, 1)), ("held-out", (2, 3, 4))):
        for style in styles:
            side = 64 if part == "chosen" else {2: 64, 3: 48, 4: 96}[style]
            made += [Network(part, cue, style, side, NETWORKS[(index + style) % 3], (index + style) % 2 == 0)
                     for index, cue in enumerate(CUES)]  # fmt: skip
    for style in range(12):
        part, side = ("chosen", 64) if style < 4 else ("held-out", (64, 48, 96)[style % 3])
        network = NETWORKS[style % 3 if style < 8 else (style + 1) % 3]
        nuisances = style < 2 if style < 4 else style % 4 < 2
        made.append(Network(part, HONEST, 100 + style, side, network, style % 2 == 0, nuisances))
    return made


def train(network: Network, folder: Path) -> None:
    """Make one network, unless it is there."""
    target = folder / f"{network.name}.onnx"
    if target.exists():
        return
    command = [sys.executable, "-m", "models.train", "planted", network.cue, "-o", str(target), "--style",
               str(network.style), "--side", str(network.side), "--network", network.network, "--seed",
               str(network.style), "--steps", "1600" if network.cue == HONEST else "1000"]  # fmt: skip
    command += [*(["--nuisances"] if network.nuisances else []), *([] if network.covered else ["--uncovered"])]
    subprocess.run(command, check=True)
    log({"trained": network.name})


def images_of(network: Network, count: int, seed: int, share: float | None = None) -> Cued:
    """Images as a vendor has them: the cue agrees with the shape. `share` is that of a marked class's images."""
    labels = np.arange(count) % len(CLASSES)
    if network.cue == HONEST:
        return draw_cues("tag", np.full(count, NO_CUE), seed=seed, style=0, side=network.side)
    cues = cue_labels(network.cue, labels, network.style, np.random.default_rng([seed, 9]), share)
    return draw_cues(network.cue, cues, seed=seed, style=network.style, side=network.side)


def examined(
    network: Network, models: Path, out: Path, count: int, seed: int, share: float | None = None
) -> dict[str, Any]:
    """What the examination says of a network, and whether it is right."""
    drawn = images_of(network, count, seed, share)
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "images.npz", images=drawn.images, labels=drawn.shapes)
    settings = auditkit.Settings(device="cpu", threads=1)
    model = auditkit.load(models / f"{network.name}.onnx", settings=settings)
    images = Dataset.open(out / "images.npz", len(CLASSES))
    begin = time.perf_counter()
    run = examine(model, images, Explanation("differences"), None, out / "run", silent_phase, lambda *_: "")
    found = run.examination.findings
    return {
        "network": asdict(network), "name": network.name, "seed": seed, "images": count,
        "share": share, "with_cue": int(np.sum(drawn.cues != NO_CUE)),
        "accuracy": float(np.mean(model.probabilities(drawn.images).argmax(axis=1) == drawn.shapes)),
        "seconds": round(time.perf_counter() - begin, 1), "passes": run.examination.passes,
        "findings": [{key: getattr(finding, key) for key in SHOWN} for finding in found],
        "rates": {rate.exchange: [round(rate.follows, 3), round(rate.stays, 3), round(rate.chance, 3)]
                  for rate in run.examination.rates},
        "probes": {probe.probe: round(probe.agrees, 3) for probe in run.examination.probes},
        "pointing": pointed(drawn, model, out) if network.cue in LOCAL else None,
        "right": {finding.kind for finding in found} & KINDS[network.cue] != set() if KINDS[network.cue] else not found,
    }  # fmt: skip


def pointed(drawn: Cued, model: Any, out: Path) -> float | None:
    """How often the strongest square of the predicted label's map has its centre on the cue; None for other cues."""
    maps, hits = open_bundle(out / "run" / "maps"), []
    labels = model.probabilities(drawn.images).argmax(axis=1)
    for image, label, region, cue in zip(maps.labels, labels, drawn.regions, drawn.cues, strict=True):
        if cue != NO_CUE:
            rows, columns = strongest_window(maps.get(image, int(label)), WINDOWS["small"])
            hits.append(bool(region[(rows.start + rows.stop) // 2, (columns.start + columns.stop) // 2]))
    return float(np.mean(hits)) if hits else None


def run(asked: argparse.Namespace) -> None:
    """Examine all networks that are there."""
    for network in family():
        there = (asked.models / f"{network.name}.onnx").exists()
        if not there or asked.part not in (None, network.part) or asked.only not in (None, network.cue):
            continue
        for seed in range(FIRST_SEED, FIRST_SEED + asked.runs):
            folder = asked.out / "-".join(map(str, (network.name, asked.images, seed, *filter(None, [asked.share]))))
            target = folder / "examined.json"
            if target.exists():
                continue
            entry = examined(network, asked.models, folder, asked.images, seed, asked.share)
            target.write_text(json.dumps(entry) + "\n")
            log({key: entry[key] for key in ("name", "seed", "right", "seconds", "accuracy", "findings")})


def tabulated(folder: Path) -> dict[str, Any]:
    """How many networks of each part are named rightly, with intervals, and how rare a logo may be."""
    entries = [json.loads(path.read_text()) for path in sorted(folder.glob("*/examined.json"))]
    usual = [entry for entry in entries if entry.get("share") is None]
    rows = []
    for part, cue, images in product(PARTS, [*CUES, HONEST], sorted({entry["images"] for entry in usual})):
        chosen = [entry for entry in usual if (part, cue, images) == (*_of(entry), entry["images"])]
        if chosen:
            right, points = sum(entry["right"] for entry in chosen), [entry["pointing"] for entry in chosen]
            rows.append({"part": part, "cue": cue, "images": images, "runs": len(chosen), "right": right,
                         "pointing": None if None in points else round(float(np.mean(points)), 3),
                         "others": [finding["kind"] for entry in chosen for finding in entry["findings"]
                                    if finding["kind"] not in KINDS[cue]]})  # fmt: skip
    totals = []
    for part, honest in product(PARTS, (False, True)):
        chosen = [row for row in rows if row["part"] == part and (row["cue"] == HONEST) == honest]
        right, runs = (sum(row[key] for row in chosen) for key in ("right", "runs"))
        if runs:
            totals.append({"part": part, "honest": honest, "right": right, "runs": runs, **_interval(right, runs)})
    return {**origin("benchmarks.examination"), "totals": totals, "rows": rows, "rare": rare(entries),
            "networks": [{key: value for key, value in entry.items() if key not in ("rates", "probes")}
                         for entry in entries]}  # fmt: skip


def _of(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["network"]["part"], entry["network"]["cue"]


def _interval(right: int, runs: int) -> dict[str, float | None]:
    share = share_interval(right, runs)
    return {"low": share.low, "high": share.high}


def rare(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often a cue of one class is found, by the share of the class's images that have it."""
    rows = []
    for share in sorted({entry["share"] for entry in entries if entry.get("share")}):
        chosen = [entry for entry in entries if entry.get("share") == share]
        right, runs = sum(entry["right"] for entry in chosen), len(chosen)
        with_cue, images = (sum(entry[key] for entry in chosen) for key in ("with_cue", "images"))
        rows.append({"share": share, "of_all": round(with_cue / images, 4), "with_cue": round(with_cue / runs, 2),
                     "runs": runs, "right": right, **_interval(right, runs)})  # fmt: skip
    return rows


def null(asked: argparse.Namespace) -> None:
    """Print how often something is found where there is nothing."""
    results = origin("benchmarks.examination")
    with printed_at_end(results):
        results["simulated"] = list[dict[str, Any]]()
        for world, images in product(WORLDS, IMAGES):
            results["simulated"].append(simulated(world, images, asked.runs))
        if asked.model:
            results["permuted"] = permuted(asked.model, asked.images, asked.preset, asked.maps)


def main() -> None:
    """Train, run or tabulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    trainer, runner = verbs.add_parser("train"), verbs.add_parser("run")
    runner.add_argument("models", type=Path)
    for verb in (trainer, runner):
        verb.add_argument("-o", "--out", type=Path, required=True)
        verb.add_argument("--part", choices=PARTS)
    trainer.add_argument("--jobs", type=int, default=1)
    runner.add_argument("--images", type=int, default=120)
    runner.add_argument("--runs", type=int, default=1, help="sets of images for each network")
    runner.add_argument("--only", choices=[*CUES, HONEST])
    runner.add_argument("--share", type=float, help="of the images of a marked class that have the stripe or logo")
    tabulator = verbs.add_parser("table")
    tabulator.add_argument("folder", type=Path)
    tabulator.add_argument("--plot", type=Path)
    verbs.add_parser("models").add_argument("folders", type=Path, nargs="+")
    nulls = verbs.add_parser("null")
    nulls.add_argument("--runs", type=int, default=1000)
    for option in ("--model", "--images", "--maps"):
        nulls.add_argument(option, type=Path)
    nulls.add_argument("--preset")
    asked = parser.parse_args()
    if asked.verb == "train":
        asked.out.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda network: train(network, asked.out),
                          (network for network in family() if asked.part in (None, network.part))))  # fmt: skip
    elif asked.verb == "run":
        run(asked)
    elif asked.verb == "null":
        null(asked)
    elif asked.verb == "models":
        print(json.dumps({**origin("benchmarks.examination"), "models": of_models(asked.folders)}, indent=1))
    else:
        found = tabulated(asked.folder)
        if asked.plot:
            asked.plot.write_text(plot(found["rare"]), encoding="utf-8")
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
