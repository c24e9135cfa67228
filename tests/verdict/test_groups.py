"""Groups of images, from a column of the CSV to figures, checks, the report and verification."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import auditkit
from auditkit.demo.draw import draw
from auditkit.demo.planted import bundled_model
from auditkit.errors import BadInput
from auditkit.report.formats import render
from auditkit.report.load_run import load
from auditkit.runs.folder import checksums
from auditkit.runs.folder.groups import Groups
from auditkit.runs.folder.results import Results
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, Sampling, verify

POLICY = """
schema_version = 1
name = "groups"
[evaluation]
labels = "top2"
steps = 4
minimum_images = 20
controls = []
"""
CHECK = '[[check]]\nid = "{}"\nmetric = "accuracy"\nmin = 0.5\nseverity = "high"\nevery_group = {}\n'
EVERYWHERE = POLICY + CHECK.format("right-everywhere", "true") + CHECK.format("right-overall", "false")


def _images(folder: Path, columns: tuple[str, ...] = ("site", "device")) -> Path:
    """Drawn images of three sites, whose tags lie at one of them; one device is rare, and one image has none."""
    rows = list[dict[str, str]]()
    folder.mkdir()
    for number, (site, tags) in enumerate([("north", "agree"), ("south", "agree"), ("west", "disagree")]):
        drawn = draw(12, seed=number, tags=tags)  # type: ignore[arg-type]
        for index, (pixels, label) in enumerate(zip(drawn.images, drawn.labels, strict=True)):
            name = f"{site}-{index}.png"
            Image.fromarray(pixels).save(folder / name)
            device = {0: "old", 1: ""}.get(len(rows), "new")
            row = {"image": name, "label": str(label), "site": site, "device": device, "time": f"10:{len(rows)}"}
            rows.append({key: row[key] for key in ("image", "label", *columns)})
    with (folder / "labels.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def _audited(folder: Path, policy: str, columns: tuple[str, ...] = ("site", "device")) -> Results:
    (folder / "policy.toml").write_text(policy)
    model = auditkit.load(bundled_model("shortcut"), settings=auditkit.Settings(device="cpu", precision="strict"))
    return auditkit.audit(model, _images(folder / "images", columns), method="gradient-input",
                          policy=folder / "policy.toml", out=folder / "run")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    _audited(folder, EVERYWHERE)
    return folder


def _groups(results: Results) -> Groups:
    assert results.groups is not None
    return results.groups


def test_the_site_that_fails_is_found(made: Path) -> None:
    groups = _groups(load(made / "run").results)
    accuracy = {figure.group: figure.value for figure in groups.figures if figure.name == "accuracy"}
    assert accuracy["north"] == accuracy["south"] == 1.0
    assert accuracy["west"] < 0.2
    shown = [gap for gap in groups.gaps if gap.at_least]
    assert [(gap.column, gap.name, gap.lower) for gap in shown] == [("site", "accuracy", "west")]
    assert 0 < shown[0].at_least < shown[0].difference
    assert groups.too_small == {"device": {"old": 1}}
    assert groups.without_group == {"device": 1}


def test_a_check_of_every_group_fails_by_its_worst_group(made: Path) -> None:
    checks = {check.id: check for check in load(made / "run").results.checks}
    everywhere, overall = checks["right-everywhere"], checks["right-overall"]
    assert (everywhere.status, everywhere.group, everywhere.n) == ("fail", "site west", 12)
    assert everywhere.title == "accuracy at least 0.5 in every group"
    assert everywhere.evidence is not None
    assert everywhere.evidence.fails >= 20  # the mean over all groups, so that none was picked
    assert (overall.status, overall.group) == ("inconclusive", None)


def test_every_form_shows_groups(made: Path) -> None:
    loaded = load(made / "run")
    page, text = render(loaded, "html"), render(loaded, "md")
    assert 'id="groups">By group</h2>' in page
    for shown in (page, text):
        assert "Accuracy differs between groups: 0.0" in shown
        assert "Find out why." in shown
        assert "fewer than 8 images: old (1)" in shown
    assert "site west" in render(loaded, "junit")
    sarif = json.loads(render(loaded, "sarif"))["runs"][0]["results"]
    assert ["site west" in entry["message"]["text"] for entry in sarif].count(True) == 1


def test_a_run_with_groups_holds_and_one_with_others_does_not(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    where = Originals(bundled_model("shortcut"), folder / "images", device="cpu")
    held = verify(folder / "run", where, Sampling(0.05, 1, 0))
    assert (held.answer, held.problems) == ("holds", [])
    path = folder / "run" / "results.json"
    plain = json.loads(path.read_text())
    for column in plain["subject"]["groups"].values():  # the images that failed are said to be of another site
        for group in column:
            column[group] = sorted(column[group], reverse=True)
    plain["subject"]["groups"]["site"] = dict(zip(["north", "south", "west"], [
        plain["subject"]["groups"]["site"][site] for site in ("west", "south", "north")], strict=True))  # fmt: skip
    path.write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")
    checksums.write(folder / "run")
    problems = verify(folder / "run", where, Sampling(0.05, 1, 0)).problems
    assert any("groups.figures" in problem for problem in problems)
    assert any("the model does not open as in the run: groups" in problem for problem in problems)


def test_without_groups_nothing_is_assessed_and_nothing_shown(tmp_path: Path) -> None:
    results = _audited(tmp_path, EVERYWHERE, ())
    assert results.groups is None
    assert "groups" not in results.to_json()
    check = next(check for check in results.checks if check.id == "right-everywhere")
    assert (check.status, results.verdict) == ("not assessed", "inconclusive")
    assert "they have no groups; name the group of each image in a column" in check.reason
    assert "By group" not in render(load(tmp_path / "run"), "html")


def test_what_has_no_groups_is_refused_in_a_policy() -> None:
    text = POLICY + '[[check]]\nid = "a"\nmetric = "flags"\nmax = 0\nseverity = "high"\nevery_group = true\n'
    with pytest.raises(BadInput, match="flags is one figure of the whole run; leave every_group out"):
        parse_policy(text, "p.toml")
    with pytest.raises(BadInput, match="every_group is 'yes', expected true or false"):
        parse_policy(POLICY + CHECK.format("a", "'yes'"), "p.toml")
