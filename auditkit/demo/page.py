"""The demo's page: which of the two models reads the tag, and how one can tell."""

import base64
import io
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from auditkit import __version__
from auditkit.arrays import Array
from auditkit.data.bundles import open_bundle
from auditkit.data.ranks import ranks
from auditkit.demo.draw import CLASSES
from auditkit.demo.planted import POLICY, TOP_PIXELS, Demo, Vendor
from auditkit.metrics.localisation import kept_first
from auditkit.metrics.statistics import Interval
from auditkit.report.examination import exchanged, seen
from auditkit.report.formatting import exact, last, percent
from auditkit.report.html import page
from auditkit.report.load_run import load, picture
from auditkit.report.sections import Fact
from auditkit.runs.folder.examination import FOLDER as EXAMINATION
from auditkit.runs.folder.results import Results
from auditkit.verdict.policy_file import read_policy

_TEMPLATES = Path(__file__).parent / "templates"
_TILES = 6  # images whose masks are shown
_KEPT_FRACTION = 0.05  # of the pixels of a tile
_ZOOM = 3
_EXCHANGES = 2  # pictures of a finding
_GRAY = 128


def render(demo: Demo) -> str:
    """The page as one HTML file."""
    runs = {vendor.model: load(demo.folder / vendor.model).results for vendor in demo.vendors}
    images = demo.audited.images
    return page("demo.html", {
        "version": __version__, "headline": headline(demo), "first": TOP_PIXELS, "answered": demo.answered,
        "right": " and ".join(dict.fromkeys(f"{vendor.correct_when_agree:.0%}" for vendor in demo.vendors)),
        "kept": percent(_KEPT_FRACTION), "images": len(images), "chance_object": f"{demo.audited.objects.mean():.0%}",
        "chance_tag": f"{TOP_PIXELS / images[0, ..., 0].size:.0%}",
        "vendors": [_vendor(vendor, runs[vendor.model], demo.folder / vendor.model) for vendor in demo.vendors],
        "tiles": _tiles(demo),
        "policies": POLICY, "origin": _origin(demo, runs),
    }, _TEMPLATES)  # fmt: skip


def headline(demo: Demo) -> str:
    """The finding in a sentence."""
    if not demo.cheats:
        return "Neither model is caught taking a shortcut"
    cheat = next(vendor for vendor in demo.vendors if vendor.relies_on)
    others = [vendor.model for vendor in demo.vendors if not vendor.relies_on]
    rest = f"; no shortcut was found in “{' and '.join(others)}”" if others else ""
    return f"{cheat.relies_on[0].replace('The model', f'The model “{cheat.model}”', 1)}{rest}"


def _origin(demo: Demo, runs: Mapping[str, Results]) -> list[tuple[str, list[Fact]]]:
    """Where the page comes from, in groups: the demo itself, and the audit of each model."""
    drawn = f"{exact(len(demo.audited.images))} for the audits, {exact(demo.answered)} of each kind for the answers"
    digest, policy = next(iter(runs.values())).subject.images.digest, read_policy(POLICY)
    return [
        ("The demo", [
            ("made by", f"auditkit {__version__}", False), ("pictures", drawn, False),
            ("drawn", f"here, with the fixed seed {demo.seed}", False), ("audited pictures, digest", digest, True),
            ("policy", policy.name, False), ("policy, sha256", policy.sha256, True),
        ]),
        *((f"The audit of {name}", _audit(run)) for name, run in runs.items()),
    ]  # fmt: skip


def _audit(run: Results) -> list[Fact]:
    model, tool = run.subject.model, f"{run.tool.name} {run.tool.version}"
    file = [] if isinstance(model, str) else [("model file", last(model.path), True), ("sha256", model.sha256, True)]
    return [*file, ("audited with", tool, False), ("ended", run.run.ended or "not recorded", False)]


def _vendor(vendor: Vendor, run: Results, folder: Path) -> dict[str, object]:
    findings, names = run.examination.findings if run.examination else (), run.subject.class_names
    examples = chain.from_iterable(finding.examples[:_EXCHANGES] for finding in findings)
    shown = [(picture(folder / EXAMINATION, example.picture), exchanged(example, names)) for example in examples]
    cheats, on_object, on_tag = bool(vendor.relies_on), vendor.on_object, vendor.on_tag
    return {
        "name": vendor.model, "tone": "fail" if cheats else "pass", "symbol": "✗" if cheats else "✓",
        "says": f"{'. '.join(vendor.relies_on) or 'No shortcut was found'}.",
        "seen": [seen(finding, names) for finding in findings], "exchanges": shown,
        "object_share": _percent(on_object.share), "tag_share": _percent(on_tag.share),
        "object_pointed": _percent(on_object.pointing_game), "tag_pointed": _percent(on_tag.pointing_game),
        "disagree": f"{vendor.correct_when_disagree:.0%}",
        "follows": f", and {vendor.followed_tag:.0%} of its answers are what the tag says" if cheats else "",
        "verdict": vendor.verdict,
        "cells": [
            ("share on the shape", _cell(on_object.share)), ("share on the tag", _cell(on_tag.share)),
            ("pointing game, shape", _cell(on_object.pointing_game)),
            ("pointing game, tag", _cell(on_tag.pointing_game)),
        ],
    }  # fmt: skip


def _percent(interval: Interval) -> int:
    return round(100 * interval.value)


def _cell(interval: Interval) -> dict[str, str]:
    low, high = interval.low, interval.high
    ends = "" if low is None or high is None else f"{low:.2f} to {high:.2f}, "
    return {"value": f"{interval.value:.2f}", "interval": f"{ends}n = {interval.n}"}


def _tiles(demo: Demo) -> list[dict[str, object]]:
    """The first images, each with its most important pixels for the true label according to each model's masks."""
    bundles = {vendor.model: open_bundle(demo.folder / vendor.model / "maps") for vendor in demo.vendors}
    tiles = list[dict[str, object]]()
    for index, image in enumerate(demo.audited.images[:_TILES]):
        label = int(demo.audited.labels[index])
        masks = [(name, _uri(_masked(image, maps.get(str(index), label)))) for name, maps in bundles.items()]
        tiles.append({"shape": CLASSES[label], "image": _uri(image), "masks": masks})
    return tiles


def _masked(image: Array, heatmap: Array) -> Array:
    keep_mask = kept_first(ranks(heatmap, "first"), round(_KEPT_FRACTION * heatmap.size))
    return np.where(keep_mask[..., None], image, np.uint8(_GRAY))


def _uri(image: Array) -> str:
    content = io.BytesIO()
    zoomed = image.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
    Image.fromarray(zoomed).save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
