"""Errors come out of a worker process as they went in."""

import importlib
import pickle
import pkgutil

import pytest

import auditkit
from auditkit.errors import AuditError, NoGradient
from auditkit.model.worker import WorkerLost


def _kinds(parent: type[AuditError] = AuditError) -> list[type[AuditError]]:
    """Every kind of error, wherever it is defined."""
    return [parent, *(kind for child in parent.__subclasses__() for kind in _kinds(child))]


def _copied(error: AuditError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - it was pickled here
    assert (type(copy), str(copy), copy.args, vars(copy)) == (type(error), str(error), error.args, vars(error))


def test_every_error_can_be_pickled() -> None:
    for module in pkgutil.walk_packages(auditkit.__path__, "auditkit."):
        if not module.name.endswith(("__main__", "ray_cluster")):
            importlib.import_module(module.name)
    kinds = _kinds()
    assert {"NoGradient", "WorkerLost", "MissingUnit", "NoMaps"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        _copied(kind("It failed."))


@pytest.mark.parametrize("error", [NoGradient("it rounds", ", or ask the vendor"), WorkerLost("it hangs", "time")])
def test_nothing_is_added_to_an_error_nor_lost(error: AuditError) -> None:
    _copied(error)
