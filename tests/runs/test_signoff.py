"""A sign-off lies beside a sealed run, changes none of its files, and holds for these files alone."""

import json
from pathlib import Path

import jsonschema
import pytest

from auditkit.cli.schema import read_schema
from auditkit.runs.folder import checksums
from auditkit.runs.folder.signoff import DECISIONS, read_sign_off
from auditkit.verdict.verify import verify
from tests.report.test_html import AUDIT, made_run
from tests.support.commands import auditkit as command
from tests.support.commands import refused

BY = ("--name", "A. Person", "--role", "head of testing", "--decision", "accepted with conditions")


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    run = made_run(tmp_path / "run", **AUDIT)
    assert command("report", run).returncode == 0
    checksums.write(run)
    return run


def test_it_fits_its_schema_and_changes_no_other_file(sealed: Path) -> None:
    before = {path: path.read_bytes() for path in sealed.rglob("*") if path.is_file()}
    done = command("sign-off", sealed, *BY, "--comment", "for indoor use")
    assert (done.returncode, done.stdout) == (0, f"{sealed / 'signoff.json'}\n")
    written = json.loads((sealed / "signoff.json").read_text())
    jsonschema.validate(written, json.loads(read_schema("signoff")))
    assert (written["name"], written["comment"]) == ("A. Person", "for indoor use")
    assert written["sums_sha256"] == checksums.digest(sealed / "SHA256SUMS")
    assert {path: path.read_bytes() for path in before} == before
    assert checksums.check(sealed) == []


def test_verify_knows_it_and_sees_that_it_was_written_for_other_files(sealed: Path) -> None:
    command("sign-off", sealed, *BY)
    checks = {check.name: check for check in verify(sealed).checks}
    assert checks["files"].problems == ()
    assert checks["sign-off"].problems == ()
    assert checks["sign-off"].about.startswith("accepted with conditions by A. Person, head of testing, on 20")
    checksums.write(sealed)
    (sealed / "SHA256SUMS").write_text((sealed / "SHA256SUMS").read_text().replace("report.html", "report.htm"))
    (problem,) = next(check for check in verify(sealed).checks if check.name == "sign-off").problems
    assert problem == "signoff.json was written for another SHA256SUMS"
    (sealed / "signoff.json").write_text('{"name": 5}')
    (problem,) = next(check for check in verify(sealed).checks if check.name == "sign-off").problems
    assert "cannot be read" in problem


def test_a_page_elsewhere_shows_it_and_that_of_the_run_stays_as_it_is(sealed: Path, tmp_path: Path) -> None:
    command("sign-off", sealed, *BY)
    assert command("report", sealed).returncode == 0  # the same page again
    assert command("report", sealed, "-o", tmp_path / "signed.html").returncode == 0
    assert "A. Person" not in (sealed / "report.html").read_text().partition('id="sign-off"')[2]
    assert "A. Person" in (tmp_path / "signed.html").read_text().partition('id="sign-off"')[2]


def test_what_is_no_decision_is_refused_in_a_sentence(sealed: Path, tmp_path: Path) -> None:
    refused(command("sign-off", sealed, *BY[:4], "--decision", "fine"), *DECISIONS)
    refused(command("sign-off", sealed, "--name", " ", *BY[2:]), "name must be text")
    refused(command("sign-off", sealed, *BY, "--comment", "two\nlines"), "comment must be text")
    refused(command("sign-off", made_run(tmp_path / "open"), *BY), "has no SHA256SUMS")
    assert read_sign_off(sealed) is None
    report = (sealed / "report.html").read_bytes()
    (sealed / "report.html").write_bytes(report + b" ")
    refused(command("sign-off", sealed, *BY), "is not signed off: report.html was changed")
    (sealed / "report.html").write_bytes(report)
    command("sign-off", sealed, *BY)
    refused(command("sign-off", sealed, *BY), "already exists", "remove it first")
