"""`auditkit doctor`: what this machine offers."""

import json
from typing import Annotated

import typer

from auditkit.cli import console, options


def doctor(
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check this machine: versions, CUDA or what it lacks, memory, and a two-second self-test."""
    from auditkit.demo import selftest  # noqa: PLC0415
    from auditkit.model import doctor  # noqa: PLC0415

    facts = doctor.describe()
    result = selftest.run(options.settings(device))
    if as_json:
        print(json.dumps({"schema_version": 1, **facts, "self_test": result.to_json()}, indent=2))
    else:
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        console.table([
            ("versions", versions),
            ("system", f"{facts['system']}, {facts['cores']} cores, {facts['memory_bytes'] / 2**30:.1f} GiB memory"),
            ("providers", ", ".join(facts["providers"])),
            ("cuda", facts["cuda"]["problem"] or "ready: " + ", ".join(facts["cuda"]["devices"])),
            ("self-test", result.sentence()),
        ])  # fmt: skip
    if not result.passed:
        raise typer.Exit(4)
