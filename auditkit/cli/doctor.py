"""`auditkit doctor`: check this machine."""

from dataclasses import asdict

import typer

from auditkit.cli import console, options


@options.with_model_options("device")
def doctor(model_options: options.ModelOptions, as_json: options.AsJson = False) -> None:
    """Check this machine: versions, CUDA or what it lacks, memory, and a two-second self-test.

    Example: auditkit doctor --device cuda
    """
    from auditkit.demo import planted
    from auditkit.model import doctor

    facts = doctor.describe()
    result = planted.self_test(model_options.settings())
    clash = doctor.name_clash()
    warnings = [clash] if clash else []
    content = {"schema_version": 1, **asdict(facts), "warnings": warnings, "self_test": result.to_json()}
    console.show(as_json, content, [
        ("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
        ("system", f"{facts.system}, {facts.cores} cores, {facts.memory_bytes / 2**30:.1f} GiB memory"),
        ("providers", ", ".join(facts.providers)),
        ("workers", facts.workers), ("telemetry", facts.telemetry),
        ("cuda", facts.cuda.problem or "ready: " + ", ".join(facts.cuda.devices)),
        *(("warning", warning) for warning in warnings), ("self-test", result.sentence()),
    ])  # fmt: skip
    if not result.passed:
        raise typer.Exit(4)
