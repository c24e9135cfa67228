"""Audits as Python users call them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auditkit.api import Maps, bundles_of, images_of
from auditkit.errors import BadInput
from auditkit.model.classifier import AnyClassifier, load
from auditkit.runs.explain import Explanation
from auditkit.verdict.audit import Asked
from auditkit.verdict.audit import audit as whole
from auditkit.verdict.policy_file import read_policy


def audit(
    model: "AnyClassifier | str | Path", images: Any, out: "str | Path",
    heatmaps: "Maps | Sequence[Maps] | Mapping[str, Maps]" = (), *, method: str | None = None,
    policy: "str | Path" = "standard", pool: Any = None, baseline: "str | Path | None" = None,
    fail_on: str | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """The object of results.json with checks and verdict; report and all that it rests on are in the folder `out`.

    Without `heatmaps`, maps are made by `method` (mask, unless given), whose options are `options`. `policy` is the
    name of one that comes with auditkit (explore, standard, strict) or a TOML file.
    """
    rules, bundles = read_policy(policy), bundles_of(heatmaps)
    given = tuple((name, str(value)) for name, value in options.items())
    if bundles and (method or given):
        said = method or f"option {given[0][0]}"
        raise BadInput(f"give heatmaps or {said}, not both: supplied maps are not made again.")
    what = None if bundles else Explanation(method or "mask", None, given, rules.seed)
    asked = Asked(rules, what, fail_on, None if baseline is None else Path(baseline))
    opened = load(model) if isinstance(model, str | Path) else model
    others = None if pool is None else images_of(opened, pool)
    return whole(opened, images_of(opened, images), asked, Path(out), bundles, others)
