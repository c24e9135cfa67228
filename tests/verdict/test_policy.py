"""Policies: what is in them counts, what cannot be meant is refused in a sentence, and the command that shows them."""

import json
import sys
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from auditkit.cli.main import main
from auditkit.errors import BadInput
from auditkit.runs.evaluation.settings import Evaluation, resolved
from auditkit.runs.folder.results import SHIPPED, RecordedSuppression
from auditkit.runs.summary import wording
from auditkit.verdict.flags import CHEATS, KINDS
from auditkit.verdict.policy import CONTROLS, Policy, shipped_text
from auditkit.verdict.policy_file import parse_policy, read_policy

SMALL = """
schema_version = 1
name = "small"

[evaluation]
minimum_images = 20
{evaluation}

[[check]]
id = "complete"
metric = "worst_completeness"
min = 0.4
severity = "high"
"""
CHECK = '\n[[check]]\nid = "more"\nmetric = "{}"\n{}\nseverity = "low"\n'
SUPPRESSION = '\n[[suppression]]\ncheck = "complete"\nreason = "known"\napprover = "A. Person"\nexpires = 2030-01-31\n'


def small(evaluation: str = "", more: str = "") -> Policy:
    return parse_policy(SMALL.format(evaluation=evaluation) + more, "small.toml")


def refused(text: str) -> str:
    with pytest.raises(BadInput) as error:
        parse_policy(text, "small.toml")
    assert str(error.value).startswith("small.toml")
    assert str(error.value).endswith((".", "?"))
    assert "\n" not in str(error.value)
    return str(error.value)


# What is read ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_ones_are_read(name: str) -> None:
    policy = read_policy(name)
    assert policy.name == name
    assert policy.description
    assert policy.shipped
    assert policy.text == shipped_text(name)
    assert policy.controls == CONTROLS
    resolved(policy.evaluation, 1000)


def test_explore_cannot_fail_and_the_others_can() -> None:
    assert {check.severity for check in read_policy("explore").checks} == {"info"}
    for name in ("standard", "strict"):
        assert "info" not in {check.severity for check in read_policy(name).checks}


def test_standard_and_strict_ask_what_they_promise() -> None:
    standard, strict = ({check.metric: check for check in read_policy(name).checks} for name in ("standard", "strict"))
    assert (read_policy("standard").minimum_images, read_policy("strict").minimum_images) == (20, 100)
    assert read_policy("standard").evaluation.labels == read_policy("strict").evaluation.labels == "top3"
    blind = tuple(control for control in CONTROLS if control != "one-map")
    for policy, of_prediction, of_others, apart in ((standard, 0.0, 0.25, 0.25), (strict, 0.05, 0.5, 0.5)):
        assert (policy["relevance_gain"].over, policy["relevance_gain"].limit) == (blind, of_prediction)
        assert (policy["other_label_evidence"].over, policy["other_label_evidence"].limit) == (CONTROLS, of_others)
        assert (policy["label_specificity"].rule, policy["label_specificity"].limit) == ("min", apart)
        assert (policy["flags"].limit, policy["runtime_error"].limit) == (0, 1e-3)
    assert (strict["randomisation"].rule, strict["randomisation"].limit) == ("max", 0.5)
    assert read_policy("standard").randomisation is None
    assert [read_policy(name).evaluation.infills for name in ("standard", "strict")] == [("gray",), ("gray", "blur")]


def test_the_text_and_its_digest_are_those_of_the_file(tmp_path: Path) -> None:
    content = SMALL.format(evaluation="").replace("\n", "\r\n").encode()
    (tmp_path / "p.toml").write_bytes(content)
    policy = read_policy(tmp_path / "p.toml")
    assert policy.text.encode() == content
    assert read_policy(str(tmp_path / "p.toml")).sha256 == policy.sha256
    assert policy.to_record().sha256 == policy.sha256
    assert not policy.shipped


def test_a_policy_that_only_calls_itself_strict_is_not_taken_for_it() -> None:
    weak = parse_policy(shipped_text("strict").replace('"control:0.05"', '"control:-0.9"'), "strict.toml")
    assert weak.name == "strict"
    assert not weak.to_record().shipped


def test_settings_reach_the_evaluation() -> None:
    settings = """
labels = "top3"
infill = ["gray", "blur"]
eps1 = 0
eps2 = 0.1
steps = 28
range = [0.2, 0.6]
confidence = 0.9
seed = 7
controls = []
"""
    found = small(settings).evaluation
    assert found == Evaluation(
        labels="top3", infill=("gray", "blur"), eps1=0.0, eps2=0.1, steps=found.steps, range=(0.2, 0.6), confidence=0.9,
        seed=7, controls=False,
    )  # fmt: skip
    assert str(found.steps) == "28"
    assert small().evaluation == Evaluation()


def test_settings_that_leave_nothing_to_measure_are_for_policies_that_ask_nothing_of_it() -> None:
    """What is measured for its own sake, or has no curve, may have any settings."""
    text = SMALL.format(evaluation="eps1 = 0.9\nrange = [0.2, 0.3]").replace("worst_completeness", "pointing_game")
    assert parse_policy(text, "small.toml").evaluation.eps1 == 0.9
    assert small("eps1 = 0.1\neps2 = 0.1\nrange = [0.2, 0.3]").evaluation.range == (0.2, 0.3)


def test_controls_are_all_or_those_listed() -> None:
    assert small('controls = "all"').controls == small("controls = true").controls == CONTROLS
    few = small('controls = ["edges", "random"]', CHECK.format("insertion", 'min_margin_over = "control:0.1"'))
    assert few.controls == few.checks[1].over == ("random", "edges")
    assert few.evaluation.controls
    assert not small("controls = []").evaluation.controls


def test_a_margin_is_over_every_control_or_one() -> None:
    def over(text: str, metric: str = "worst_completeness") -> tuple[tuple[str, ...], float, str]:
        check = small(more=CHECK.format(metric, f'min_margin_over = "{text}"')).checks[1]
        return check.over, check.limit, check.rule_text

    assert over("control:0.05") == (CONTROLS, 0.05, "margin over every control")
    assert over("control:edges:-1e-2") == (("edges",), -0.01, "margin over control:edges")
    assert over("control:centred-gaussian:.5")[:2] == (("centred-gaussian",), 0.5)
    assert over("control:one-map:0") == (("one-map",), 0, "margin over control:one-map")
    assert "one-map" not in over("control:0", "insertion")[0]  # its map of the predicted label is the bundle's own


def test_titles_say_what_is_asked() -> None:
    margins = {
        "control:0": "insertion above every control",
        "control:0.1": "insertion above every control by more than 0.1",
        "control:edges:-0.1": "insertion less than 0.1 below that of edges",
        "control:random:0": "insertion above that of a random map",
    }
    for text, said in margins.items():
        assert small(more=CHECK.format("insertion", f'min_margin_over = "{text}"')).checks[1].title == said
    assert small().checks[0].title == "worst completeness at least 0.4"
    assert small(more=CHECK.format("flags", 'max = 0\ntitle = "no fakes"')).checks[1].title == "no fakes"


def test_every_control_has_a_plain_name() -> None:
    assert tuple(wording.CONTROLS) == CONTROLS
    assert [wording.source_text(f"control:{control}") for control in ("random", "blurred-edges", "one-map:maps")] == [
        "a random map", "blurred edges", "one map for all labels (maps)"]  # fmt: skip


def test_suppressions_name_checks_or_single_cheats() -> None:
    (one,) = small(more=SUPPRESSION).suppressions
    assert one.to_record() == RecordedSuppression("known", "A. Person", "2030-01-31")
    assert one.expires == date(2030, 1, 31)
    for cheat in CHEATS:
        assert small(more=SUPPRESSION.replace("complete", cheat)).suppressions[0].check == cheat


def test_randomisation_is_run_only_when_asked_for() -> None:
    assert small().randomisation is None
    asked = small(more="\n[randomisation]\nimages = 8\n").randomisation
    assert asked is not None
    assert (asked.images, asked.stages) == (8, 4)


# What is refused ------------------------------------------------------------------------------------------------------

EVALUATION = {
    "esp1 = 0.1": "unknown key 'esp1'; did you mean 'eps1'?",
    "wavelength = 3": "unknown key 'wavelength'; choose from labels, infill",
    "eps1 = 1.0": "eps1 1.0 must lie in [0, 1)",
    "eps2 = -0.1": "eps2 -0.1 must lie in [0, 1)",
    "eps1 = 0.999": "with eps1 = 0.999 all maps come out alike, so that [[check]] complete shows nothing",
    "eps2 = 0.11": "with eps2 = 0.11 all maps come out alike",
    "range = [0.999, 1]": "over the range 0.999 to 1 all maps come out alike, so that [[check]] complete shows nothing",
    "range = [0.2, 0.29]": "it must begin at 0.5 at most and be 0.1 wide or more",
    "range = [0.6, 1]": "over the range 0.6 to 1",
    "eps1 = nan": "eps1 is nan",
    "eps1 = inf": "eps1 is inf",
    'eps1 = "0.1"': "eps1 is '0.1', expected a number from 0",
    "eps1 = true": "eps1 is true",
    'steps = "fine"': "steps 'fine' is not",
    "steps = 0": "steps '0' is not",
    "steps = 2.5": "steps is 2.5, expected a number of points",
    "steps = true": "steps is true",
    'infill = "grey"': "unknown infill 'grey'; did you mean 'gray'?",
    "infill = []": "infill is []",
    'infill = ["gray", 3]': "infill is ['gray', 3]",
    "range = [0.6, 0.2]": "range 0.6 to 0.2",
    "range = [nan, 0.2]": "range is [nan, 0.2], expected two kept fractions",
    f"range = [0, {'9' * 400}]": "range is [0, 999",
    f"steps = {'9' * 400}": "steps is an integer that is too large, expected a number of points",
    f"infill = [0x{'f' * 5000}]": "infill is a value with an integer that is too large",
    "range = 0.5": "range is 0.5, expected two kept fractions",
    "confidence = 95": "confidence 95.0 must lie in [0.5, 1)",
    "seed = -1": "seed is -1, expected a whole number from 0 up",
    "labels = [3, 7]": "labels is [3, 7], expected 'all'",
    'labels = "some"': "labels 'some' is not a label set",
    'labels = "top1"': "worst_completeness needs maps for more labels than labels = 'top1' has",
    'labels = "3"': "worst_completeness needs maps for more labels",
    "max_failed_images = 1": "max_failed_images is 1, expected a share",
    "max_failed_images = -0.1": "max_failed_images is -0.1",
    "controls = false": "controls is false, expected 'all' or a list of random",
    'controls = ["edge"]': "unknown control 'edge'; did you mean 'edges'?",
}


@pytest.mark.parametrize("line", EVALUATION)
def test_settings_that_cannot_be_meant(line: str) -> None:
    said = refused(SMALL.format(evaluation=line))
    assert EVALUATION[line] in said
    assert "[evaluation]" in said or "[[check]]" in said


CHECKS = {
    ("worst_completness", "min = 0.4"): "did you mean 'worst_completeness'?",
    ("insertion", ""): "exactly one of min, max, min_margin_over, found none of them",
    ("insertion", "min = 0.1\nmax = 0.2"): "found min and max",
    ("insertion", "min = 1.2"): "min is 1.2, expected a number from 0 to 1, the values that insertion can have",
    ("insertion", "min = 0"): "which no insertion can miss",
    ("deletion", "max = 1"): "which no deletion can miss",
    ("insertion", "min = nan"): "min is nan, expected a finite number",
    ("insertion", f"min = {'9' * 400}"): "min is an integer that is too large, expected a finite number.",
    ("insertion", 'min = "0.4"'): "min is '0.4'",
    ("insertion", "min = true"): "min is true",
    ("insertion", "minimum = 0.4"): "unknown key 'minimum'; did you mean 'min'?",
    ("insertion", 'min_margin_over = "0.05"'): "expected 'control:MARGIN'",
    ("insertion", "min_margin_over = 0.05"): "expected 'control:MARGIN'",
    ("insertion", 'min_margin_over = "control:2"'): "margin between -1 and 1",
    ("insertion", 'min_margin_over = "control:nan"'): "expected 'control:MARGIN'",
    (
        "insertion",
        'min_margin_over = "control:gauss:0.1"',
    ): "the policy has no control 'gauss' for insertion; it has random",
    ("insertion", 'min_margin_over = "control:one-map:0"'): "the policy has no control 'one-map' for insertion",
    ("deletion", 'min_margin_over = "control:0"'): "deletion has no margin over controls",
    ("flags", "min = 1"): "give max, not min",
    ("flags", "max = 0.5"): "a whole number from 0 up",
    ("flags", "max = -1"): "a whole number from 0 up",
    ("flags", "max = 3"): "which no flags can miss",
    ("flags", "max = 4"): "a number from 0 to 3",
    ("runtime_error", "max = 1"): "can miss",
    ("runtime_error", "max = 0.06"): "a machine that far off computes something else; it may be 0.05 at most",
    ("randomisation", "max = 0.5"): "randomisation is not run; add a table [randomisation]",
    ("insertion", 'min = 0.4\nrequired = "no"'): "required is 'no', expected true or false",
    ("insertion", 'min = 0.4\ntitle = " "'): "title is ' '",
}


@pytest.mark.parametrize(("metric", "lines"), CHECKS)
def test_checks_that_cannot_be_meant(metric: str, lines: str) -> None:
    said = refused(SMALL.format(evaluation="") + CHECK.format(metric, lines))
    assert CHECKS[metric, lines] in said
    assert "[[check]] more" in said


def test_an_integer_that_python_does_not_read_is_refused() -> None:
    assert "is not TOML: " in refused(SMALL.format(evaluation=f"eps1 = {'9' * 5000}"))


@pytest.mark.parametrize(("metric", "most"), [("flags", 2), ("runtime_error", 0.05)])
def test_limits_just_below_what_is_refused_are_read(metric: str, most: float) -> None:
    assert small(more=CHECK.format(metric, f"max = {most}")).checks[1].limit == most


def test_a_margin_over_a_control_that_is_not_run() -> None:
    text = SMALL.format(evaluation='controls = ["edges"]')
    said = refused(text + CHECK.format("insertion", 'min_margin_over = "control:random:0"'))
    assert "the policy has no control 'random' for insertion; it has edges." in said
    text = SMALL.format(evaluation="controls = []")
    said = refused(text + CHECK.format("insertion", 'min_margin_over = "control:0"'))
    assert "the policy has no controls for insertion." in said


SUPPRESSIONS = {
    ("complete", "compleet"): "unknown check 'compleet'; did you mean 'complete'?",
    ("complete", "images"): "cannot be suppressed",
    ("2030-01-31", '"2030-01-31"'): "expected a date without quotes",
    ("2030-01-31", "2030-01-31T00:00:00Z"): "expected a date without quotes",
    ('approver = "A. Person"\n', ""): "approver is missing",
    ('approver = "A. Person"', 'approver = "\\u200b"'): "expected a text in quotes, not blank",
    ('"known"', '""'): "reason is ''",
    ("expires", "expire"): "unknown key 'expire'; did you mean 'expires'?",
}


@pytest.mark.parametrize(("said", "instead"), SUPPRESSIONS)
def test_suppressions_that_cannot_be_meant(said: str, instead: str) -> None:
    sentence = refused(SMALL.format(evaluation="") + SUPPRESSION.replace(said, instead))
    assert SUPPRESSIONS[said, instead] in sentence
    assert "[[suppression]]" in sentence


PLAIN, OVERLAP = SMALL.format(evaluation=""), CHECK.format("iou", "min = 0.1")
FILES = {
    "": "schema_version is missing, expected 1",
    "schema_version = 2": "schema_version is 2, expected 1",
    "schema_version = true": "schema_version is true, expected 1",
    'schema_version = 1\nname = "x"\n[[[': "is not TOML",
    "schema_version = 1": "name is missing",
    'schema_version = 1\nname = "x"\nchecks = []': "unknown key 'checks'; did you mean 'check'?",
    'schema_version = 1\nname = "x"\ncheck = 3': "each written as [[check]]",
    'schema_version = 1\nname = "x"\ncheck = [3]': "[[check]] number 1 is 3, expected a table",
    'schema_version = 1\nname = "x"\nevaluation = 3': "[evaluation] is 3, expected a table",
    'schema_version = 1\nname = "x"\nfail_on = "info"': "unknown fail_on 'info'; choose from low",
    'schema_version = 1\nname = "x"\nfail_on = "hihg"': "did you mean 'high'?",
    'schema_version = 1\nname = "x"\nfail_on_finding = "hihg"\n[examination]': "did you mean 'high'?",
    'schema_version = 1\nname = "x"\nfail_on_finding = "info"\n[examination]': "unknown fail_on_finding 'info'",
    'schema_version = 1\nname = "x"\nfail_on_finding = "high"': "add a table [examination]",
    'schema_version = 1\nname = "x"\n[randomisation]\nimage = 3': "did you mean 'images'?",
    'schema_version = 1\nname = "x"\n[randomisation]\nstages = 0': "stages is 0, expected a whole number from 1 up",
    SMALL.replace("minimum_images = 20\n{evaluation}", ""): "minimum_images is missing; set how many",
    SMALL.replace("20\n{evaluation}", "0"): "minimum_images is 0, expected a whole number from 1 up",
    SMALL.replace("20\n{evaluation}", "20.0"): "minimum_images is 20.0",
    PLAIN + OVERLAP.replace("more", "complete"): "two checks have the id",
    PLAIN + OVERLAP.replace("more", "My check"): "id is 'My check'",
    PLAIN + OVERLAP.replace("more", "labels"): "of auditkit's own",
    PLAIN + OVERLAP.replace("more", "cheat-x"): "of auditkit's own",
    PLAIN + OVERLAP.replace("low", "severe"): "unknown severity 'severe'",
    PLAIN + SUPPRESSION * 2: "suppressed twice",
}


@pytest.mark.parametrize("text", FILES)
def test_files_that_cannot_be_meant(text: str) -> None:
    assert FILES[text] in refused(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown policy or file 'strct'; did you mean 'strict'"):
        read_policy("strct")
    with pytest.raises(BadInput, match="not a regular file"):
        read_policy(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot be read"):
        read_policy(tmp_path / "binary.toml")
    (tmp_path / "huge.toml").write_bytes(bytes(2**20 + 1))
    with pytest.raises(BadInput, match="262,144 bytes"):
        read_policy(tmp_path / "huge.toml")


def test_no_key_can_hold_just_anything() -> None:
    """Every key of a full policy, given a value of another type, is refused."""
    lists_in_a_line = shipped_text("strict").replace("[\n  ", "[").replace(",\n  ", ", ").replace(",\n]", "]")
    lines, tried = lists_in_a_line.splitlines(), 0
    for place, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            key = line.split(" = ")[0]
            for value in ("{ a = 1 }", "1979-05-27", "[[1]]"):
                text = "\n".join([*lines[:place], f"{key} = {value}", *lines[place + 1 :]])
                with pytest.raises(BadInput, match=key):
                    parse_policy(text, "p.toml")
                tried += 1
    assert tried > 90


# The command ----------------------------------------------------------------------------------------------------------

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`auditkit policy` in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["auditkit", "policy", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", SHIPPED)
def test_init_writes_a_policy_of_ones_own(name: str, command: Command, tmp_path: Path) -> None:
    code, _, said = command("init", name, "-o", "our rules.toml")
    assert (code, said) == (0, "")
    ours, theirs = read_policy(tmp_path / "our rules.toml"), read_policy(name)
    assert (ours.name, ours.shipped) == ("our-rules", False)
    assert (ours.checks, ours.evaluation, ours.minimum_images) == (
        theirs.checks, theirs.evaluation, theirs.minimum_images,
    )  # fmt: skip
    assert sum(line.startswith("#") for line in ours.text.splitlines()) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["our rules.toml"]


def test_init_writes_over_nothing_unless_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("years of work")
    code, out, said = command("init")
    assert (code, out) == (2, "")
    assert said == "auditkit: policy.toml already exists; choose another file with -o, or overwrite it with --force.\n"
    assert (tmp_path / "policy.toml").read_text() == "years of work"
    assert command("init", "--force")[0] == 0
    assert read_policy("policy.toml").minimum_images == 20


def test_init_has_its_limits(command: Command, tmp_path: Path) -> None:
    assert "unknown policy 'lax'; choose from explore" in command("init", "lax")[2]
    assert "its folder does not exist" in command("init", "-o", tmp_path / "no" / "p.toml")[2]
    code, _, said = command("init", "--force", "-o", tmp_path)
    assert (code, said) == (2, f"auditkit: {tmp_path} cannot be written: it is a folder.\n")


def test_check_says_what_is_asked(command: Command, tmp_path: Path) -> None:
    code, out, said = command("check", "strict")
    assert (code, said) == (0, "")
    flat = " ".join(out.split())
    for words in ("100 or more", "relevance gain above every control by more than 0.05", "100 images in 5 stages",
                  "label specificity at least 0.5", "randomisation at most 0.5"):  # fmt: skip
        assert words in flat
    assert "the verdict will be 'measured'" in command("check", "explore")[1]
    (tmp_path / "p.toml").write_text(SMALL.format(evaluation="") + SUPPRESSION.replace("2030", "2001"))
    flat = " ".join(command("check", "p.toml")[1].split())
    assert "small, not one that auditkit ships" in flat
    assert "complete until 2001-01-31 by A. Person: known; EXPIRED" in flat


def test_check_as_json(command: Command) -> None:
    code, out, _ = command("check", "standard", "--json")
    found = json.loads(out)
    assert (code, found["schema_version"], found["name"], found["shipped"]) == (0, 1, "standard", True)
    assert found["checks"][0] | {"title": ""} == {
        "id": "prediction-above-controls", "title": "", "metric": "relevance_gain",
        "rule": "margin over every control", "limit": 0.0, "severity": "high", "required": True,
    }  # fmt: skip


def test_check_refuses_in_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SMALL.format(evaluation="esp1 = 0"))
    assert command("check", "p.toml") == (
        2, "", "auditkit: p.toml [evaluation]: unknown key 'esp1'; did you mean 'eps1'?\n",
    )  # fmt: skip


def test_list_names_those_that_come_along(command: Command) -> None:
    out = command("list")[1]
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == list(SHIPPED)
    found = json.loads(command("list", "--json")[1])
    assert [one["name"] for one in found["policies"]] == list(SHIPPED)


def test_every_flag_that_is_a_cheat_has_a_name() -> None:
    assert len(set(CHEATS)) == len(CHEATS) == sum(bool(kind.id) + bool(kind.open_id) for kind in KINDS)


def test_the_wheel_holds_the_policies(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).parents[2]
    (built,) = wheel.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(built).namelist())
    assert {f"auditkit/verdict/policies/{name}.toml" for name in SHIPPED} <= names
    assert {
        "auditkit/demo/templates/demo.html",
        "auditkit/report/templates/report.css",
    } <= names


def test_a_started_policy_names_its_file_as_one_would_type_it(command: Command, tmp_path: Path) -> None:
    for name, typed in (("my own.toml", "'my own.toml'"), ("two\nlines.toml", "two-lines")):
        assert command("init", "-o", str(tmp_path / name))[0] == 0
        first, second = (tmp_path / name).read_text().splitlines()[:2]
        assert first.endswith(f"auditkit policy check {typed}")
        assert second == ""
