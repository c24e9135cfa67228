"""Checks of gradients, kept from one run to the next: on a CPU, a ResNet-50's takes most of a minute.

A check is used again for the same graphs, weights, device and versions only.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict

import onnx

from auditkit import __version__
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.gradient_check import Check
from auditkit.model.runtime import build
from auditkit.user_cache import opened_table, unusable

_TABLE = "gradient_checks (key TEXT PRIMARY KEY, result TEXT)"
_MOST = 1000  # the oldest are dropped


def check_key(classifier: OnnxClassifier, joined: onnx.ModelProto) -> str:
    """A digest of all that a check depends on: the model with its gradient, its weights, and what runs it."""
    settings = classifier.settings
    facts = [__version__, build().version, classifier.identity, settings.device, settings.precision,
             repr(classifier.card), repr(classifier.signature)]  # fmt: skip
    graph = joined.SerializeToString(deterministic=True)
    return hashlib.sha256(json.dumps(facts).encode() + graph).hexdigest()


def load(key: str) -> Check | None:
    """The check that was kept under this key."""
    with unusable(), suppress(ValueError, TypeError), opened_table(_TABLE) as database:  # an entry may be damaged
        row = database.execute("SELECT result FROM gradient_checks WHERE key = ?", (key,)).fetchone()
        return None if row is None else Check(**json.loads(row[0]))
    return None


def save(key: str, check: Check) -> None:
    """Keep a check that passed."""
    with unusable(), opened_table(_TABLE) as database:
        database.execute("INSERT OR REPLACE INTO gradient_checks VALUES (?, ?)", (key, json.dumps(asdict(check))))
        drop = "DELETE FROM gradient_checks WHERE rowid <= (SELECT MAX(rowid) FROM gradient_checks) - ?"
        database.execute(drop, (_MOST,))
