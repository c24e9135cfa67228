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
    clash = doctor.name_clash()
    warnings = [clash] if clash else []
    if as_json:
        report = {"schema_version": 1, **facts, "warnings": warnings, "self_test": result.to_json()}
        print(json.dumps(report, indent=2))
    else:
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        console.table([
            ("versions", versions),
            ("system", f"{facts['system']}, {facts['cores']} cores, {facts['memory_bytes'] / 2**30:.1f} GiB memory"),
            ("providers", ", ".join(facts["providers"])),
            ("cuda", facts["cuda"]["problem"] or "ready: " + ", ".join(facts["cuda"]["devices"])),
            *(("warning", warning) for warning in warnings),
            ("self-test", result.sentence()),
        ])  # fmt: skip
    if not result.passed:
        raise typer.Exit(4)
