"""What to do next names the checks that it is about, says each thing once, and does not contradict itself."""

from pathlib import Path
from typing import Any

import pytest

from auditkit.report.answers import next_steps
from auditkit.report.load_run import Loaded, load
from auditkit.runs.folder.figures import MoreImages
from auditkit.runs.summary.wording import images_to_add
from tests.report.test_html import AUDIT, changed, made_run, one_check


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(made_run(tmp_path_factory.mktemp("steps") / "run", **AUDIT))


def open_check(title: str, images: int | None, **values: Any) -> dict[str, Any]:
    """A check that so many images would decide."""
    return one_check("inconclusive", id=title, title=title, what_to_do=None, of="maps", reason=f"{title}.",
                     more_images={"total": images, "each_group": False}, **values)  # fmt: skip


def steps_about_images(loaded: Loaded, *checks: dict[str, Any]) -> list[str]:
    results = changed(loaded, checks=list(checks), verdict="inconclusive").results
    return [step for step in next_steps(results) if "images" in step]


def test_checks_that_need_different_numbers_of_images_share_one_step(loaded: Loaded) -> None:
    assert steps_about_images(loaded, open_check("first", 90), open_check("second", 50)) == [
        "Add images. About 90 images like these in total would decide “first” and “second”, one way or the other."
    ]


def test_a_check_that_images_decide_and_one_that_they_do_not_are_no_contradiction(loaded: Loaded) -> None:
    assert steps_about_images(loaded, open_check("first", 70), open_check("second", None)) == [
        "About 70 images like these in total would decide “first”, but even 10 times as many would hardly "
        "decide “second”: more images may lead to a fail, and hardly to a pass."
    ]


def test_nobody_is_told_to_add_images_that_would_not_help(loaded: Loaded) -> None:
    assert steps_about_images(loaded, open_check("first", None)) == [
        "More images would hardly help: even 10 times as many would hardly decide “first”."
    ]


def test_images_of_each_group_are_counted_apart() -> None:
    outlooks = [("all", MoreImages(40)), ("groups", MoreImages(30, each_group=True))]
    assert images_to_add(outlooks) == (
        "About 40 images like these in total would decide “all”, one way or the other. "
        "About 30 images of each group would decide “groups”, one way or the other."
    )


def test_a_step_names_the_heatmaps_where_there_are_several_sets(loaded: Loaded, tmp_path: Path) -> None:
    several = load(made_run(tmp_path / "run", sources=("maps", "others", "control:random"), **AUDIT))
    (step,) = steps_about_images(several, open_check("first", 90))
    assert "“first, of maps”" in step


def test_advice_for_several_checks_is_given_once(loaded: Loaded) -> None:
    checks = [one_check("fail", id=title, title=title) for title in ("first", "second")]
    steps = next_steps(changed(loaded, checks=checks, verdict="fail").results)
    assert [step for step in steps if "Ask." in step] == ["About “first” and “second”: Ask."]
