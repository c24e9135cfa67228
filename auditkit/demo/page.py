"""The demo's page: which of the two models reads the tag, and how that shows."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from auditkit import __version__
from auditkit.arrays import Array
from auditkit.data.bundles import open_bundle
from auditkit.data.ranks import ranks
from auditkit.demo.draw import CLASSES
from auditkit.demo.planted import FIRST, Demo, Vendor
from auditkit.metrics.localisation import kept_first
from auditkit.metrics.statistics import Interval
from auditkit.report.formatting import exact, last, percent
from auditkit.report.html import page
from auditkit.report.load_run import load
from auditkit.report.sections import Fact

TEMPLATES = Path(__file__).parent / "templates"
SHOWN = 6  # pictures whose masks are shown
KEPT = 0.05
ZOOM = 3
GRAY = 128


def render(demo: Demo) -> str:
    """The page as one file."""
    runs = {vendor.model: load(demo.folder / vendor.model).results for vendor in demo.vendors}
    pixels = demo.audited.images[0].shape[0] * demo.audited.images[0].shape[1]
    return page("demo.html", {
        "version": __version__, "headline": headline(demo), "right": _right(demo), "first": FIRST,
        "answered": demo.answered, "kept": percent(KEPT), "images": len(demo.audited.images),
        "chance_object": f"{demo.audited.objects.mean():.0%}", "chance_tag": f"{FIRST / pixels:.0%}",
        "vendors": [_vendor(vendor) for vendor in demo.vendors], "tiles": _tiles(demo),
        "policies": _policies(runs), "origin": _origin(demo, runs),
    }, TEMPLATES)  # fmt: skip


def headline(demo: Demo) -> str:
    """The finding in a sentence."""
    if not demo.cheats:
        return "Neither model is caught reading the tag"
    others = [vendor.model for vendor in demo.vendors if vendor.model not in demo.cheats]
    rest = f"; {' and '.join(others)} looks at the shape" if others else ""
    return f"The model “{' and '.join(demo.cheats)}” reads the tag instead of the shape{rest}"


def _policies(runs: dict[str, Any]) -> str:
    """Names of the policies that the audits were judged by; one, unless somebody meddled."""
    return " and ".join(dict.fromkeys(str(run["policy"]["name"]) for run in runs.values()))


def _origin(demo: Demo, runs: dict[str, Any]) -> list[tuple[str, list[Fact]]]:
    """Where the page comes from, in groups: itself, and the audit of each model."""
    drawn = f"{exact(len(demo.audited.images))} for the audits, {exact(demo.answered)} of each kind for the answers"
    own = [
        ("made by", f"auditkit {__version__}", False), ("pictures", drawn, False),
        ("drawn", f"here, with the fixed seed {demo.seed}", False),
        *dict.fromkeys(fact for run in runs.values() for fact in (
            ("audited pictures, digest", str(run["subject"]["images"]["digest"]), True),
            ("policy", f"{run['policy']['name']} (the demo's own policy.toml)", False),
            ("policy, sha256", str(run["policy"]["sha256"]), True))),
    ]  # fmt: skip
    return [("The demo", own), *((f"The audit of {name}", _audit(run)) for name, run in runs.items())]


def _audit(run: dict[str, Any]) -> list[Fact]:
    model = run["subject"]["model"]
    return [
        ("model file", last(model["path"]), True), ("sha256", str(model["sha256"]), True),
        ("audited with", f"{run['tool']['name']} {run['tool']['version']}", False),
        ("ended", str(run["run"].get("ended") or "not recorded"), False),
    ]  # fmt: skip


def _right(demo: Demo) -> str:
    return " and ".join(dict.fromkeys(f"{vendor.correct_when_agree:.0%}" for vendor in demo.vendors))


def _vendor(vendor: Vendor) -> dict[str, Any]:
    cheats = vendor.reads_the_tag
    places = {"object": vendor.on_object, "tag": vendor.on_tag}
    cells = {
        "share on the shape": vendor.on_object.share, "share on the tag": vendor.on_tag.share,
        "pointing game, shape": vendor.on_object.pointed, "pointing game, tag": vendor.on_tag.pointed,
    }  # fmt: skip
    return {
        "name": vendor.model, "tone": "fail" if cheats else "pass", "symbol": "✗" if cheats else "✓",
        "says": "Its evidence lies on the tag." if cheats else "Its evidence lies on the shape.",
        **{f"{name}_share": round(100 * place.share.value) for name, place in places.items()},
        **{f"{name}_pointed": round(100 * place.pointed.value) for name, place in places.items()},
        "disagree": f"{vendor.correct_when_disagree:.0%}",
        "follows": f", and {vendor.followed_tag:.0%} of its answers are what the tag says" if cheats else "",
        "verdict": vendor.verdict, "cells": [(words, _cell(found)) for words, found in cells.items()],
    }  # fmt: skip


def _cell(found: Interval) -> dict[str, str]:
    bounds = "" if found.low is None or found.high is None else f"{found.low:.2f} to {found.high:.2f}, "
    return {"value": f"{found.value:.2f}", "interval": f"{bounds}n = {found.n}"}


def _tiles(demo: Demo) -> list[dict[str, Any]]:
    """The first pictures, each with its most important pixels for the true label by each model's masks."""
    maps = {vendor.model: open_bundle(demo.folder / vendor.model / "maps") for vendor in demo.vendors}
    tiles = []
    for index in range(min(SHOWN, len(demo.audited.images))):
        picture, label = demo.audited.images[index], int(demo.audited.labels[index])
        masks = [(name, _uri(_shown(picture, bundle.get(str(index), label)))) for name, bundle in maps.items()]
        tiles.append({"shape": CLASSES[label], "image": _uri(picture), "masks": masks})
    return tiles


def _shown(picture: Array, values: Array) -> Array:
    keep = kept_first(ranks(values, "first"), round(KEPT * values.size))
    return np.where(keep[..., None], picture, np.uint8(GRAY))


def _uri(picture: Array) -> str:
    content = io.BytesIO()
    big = picture.repeat(ZOOM, axis=0).repeat(ZOOM, axis=1)
    Image.fromarray(big).save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
