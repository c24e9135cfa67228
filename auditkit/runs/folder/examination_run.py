"""What examination.json holds, as types: an examination without an audit."""

from collections.abc import Mapping
from dataclasses import dataclass

from auditkit.runs.folder.examination import Examination
from auditkit.runs.folder.results import SCHEMA_VERSION, Subject, Tool


@dataclass(frozen=True)
class ExaminationRun:
    """All that examination.json holds."""

    tool: Tool
    subject: Subject
    environment: Mapping[str, str]
    seed: int
    examination: Examination
    schema_version: int = SCHEMA_VERSION
