"""Maps that an audit made itself are not accused of being those of other images; maps that somebody supplied are."""

from pathlib import Path

import pytest

import auditkit
from auditkit.methods.registry import METHODS
from auditkit.runs.folder.results import Results
from auditkit.verdict.verify import verify
from tests.support.relying_models import CORNER, coloured

POLICY = """schema_version = 1
name = "own-maps"
[evaluation]
labels = "top2"
steps = 4
minimum_images = 4
[[check]]
id = "no-cheat-flag"
metric = "flags"
max = 0
severity = "critical"
"""


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results, Results]:
    """The folder of two audits of a model that looks at one corner: of its own maps, and of the same ones supplied."""
    folder = tmp_path_factory.mktemp("own-maps")
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    relying = coloured(CORNER, count=21)
    images = relying.dataset(folder)
    own = auditkit.audit(relying.model(), images, folder / "own", method="occlusion", policy=policy)
    supplied = auditkit.audit(relying.model(), images, folder / "supplied", folder / "own" / "maps", policy=policy)
    return folder, own, supplied


def test_own_maps_of_a_model_that_looks_at_one_place_raise_no_flag(audits: tuple[Path, Results, Results]) -> None:
    folder, own, _ = audits
    assert "position-only" not in [flag.kind for flag in own.flags]
    assert "cheat-position-only" not in [check.id for check in own.checks]
    assert "maps are those of other images" not in (folder / "own" / "report.html").read_text()


def test_the_same_maps_are_flagged_where_somebody_supplied_them(audits: tuple[Path, Results, Results]) -> None:
    _, _, supplied = audits
    assert "position-only" in [flag.kind for flag in supplied.flags]
    assert "cheat-position-only" in [check.id for check in supplied.checks]


@pytest.mark.parametrize("run", ["own", "supplied"])
def test_both_runs_hold(audits: tuple[Path, Results, Results], run: str) -> None:
    assert verify(audits[0] / run).problems == []


def test_methods_that_may_return_the_same_map_for_all_images_are_still_flagged() -> None:
    doubtful = [name for name, method in METHODS.items() if not method.explains_each_image]
    assert doubtful == ["masker", "random", "centred-gaussian", "constant", "edges", "blurred-edges",
                        "noisy-gaussian", "noisy-edges"]  # fmt: skip
