"""The schema of results.json from the types that it is read with.

To write it anew: python -m tests.support.results_schema > auditkit/schemas/results.schema.json
"""

import json

from auditkit.records import json_schema
from auditkit.runs.folder.results import SCHEMA_VERSION, Results


def results_schema() -> str:
    """The text of results.schema.json."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:auditkit:schema:results:{SCHEMA_VERSION}",
        "title": "results.json",
        "description": "What an evaluation or an audit found: figures with their intervals, flags, checks, the verdict "
        "and where all of it comes from.",
    }
    schema = json_schema(Results)
    required, properties = schema["required"], schema["properties"]
    assert isinstance(required, list)
    assert isinstance(properties, dict)
    required.insert(0, "schema_version")
    properties["schema_version"] = {"const": SCHEMA_VERSION}
    return json.dumps({**head, **schema}, indent=2) + "\n"


if __name__ == "__main__":
    print(results_schema(), end="")
