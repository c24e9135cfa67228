"""Audits as Python users call them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auditkit.model.classifier import AnyClassifier, load
from auditkit.runs.api import Maps, bundles_of, images_of
from auditkit.runs.explain import Explanation
from auditkit.verdict.audit import Asked
from auditkit.verdict.audit import audit as whole
from auditkit.verdict.policy import read_policy


def audit(
    model: "AnyClassifier | str | Path", images: Any, out: "str | Path",
    heatmaps: "Maps | Sequence[Maps] | Mapping[str, Maps]" = (), *, method: str = "mask",
    policy: "str | Path" = "standard", pool: Any = None, baseline: "str | Path | None" = None,
    fail_on: str | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """The object of results.json with checks and verdict; report and all that it rests on are in the folder `out`.

    Without `heatmaps`, maps are made by `method`, whose options are `options`. `policy` is the name of one that comes
    with auditkit (explore, standard, strict) or a TOML file.
    """
    opened = load(model) if isinstance(model, str | Path) else model
    rules, bundles = read_policy(policy), bundles_of(heatmaps)
    given = tuple((name, str(value)) for name, value in options.items())
    what = None if bundles else Explanation(method, None, given, rules.seed)
    asked = Asked(rules, what, fail_on, None if baseline is None else Path(baseline))
    others = None if pool is None else images_of(opened, pool)
    return whole(opened, images_of(opened, images), asked, Path(out), bundles, others)
