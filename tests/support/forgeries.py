"""A forger of runs who knows auditkit: whatever is changed, all that follows from it is made anew."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import auditkit
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.model.classifier import AnyClassifier
from auditkit.records import to_object
from auditkit.report.html import render_html
from auditkit.report.load_run import load
from auditkit.runs.evaluation.plan import RunRecord, without_paths
from auditkit.runs.folder import checksums, parquet
from auditkit.runs.folder.figures import Runtime
from auditkit.runs.folder.results import Results
from auditkit.runs.folder.store import Store, digest
from auditkit.runs.pictures.gallery import encoded_index, gallery_index, showcase
from auditkit.runs.summary.results import results
from auditkit.runs.summary.samples import Samples
from auditkit.runs.summary.summarise import Summary, summarise
from auditkit.verdict.decision import judge
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.run_record import RecordedRun

Change = Callable[[dict[str, Any]], Any]
Row = dict[str, Any]


def _keep(row: Row) -> Row | None:
    return row


class Forger:
    """Changes the run in a folder."""

    def __init__(self, run: Path, originals: Path | None = None) -> None:
        """`originals` holds model.onnx, images and, if they were supplied, maps; without them no picture is redrawn."""
        self.run, self.originals = run, originals
        self.recorded = RecordedRun.of(run)
        self.tables = {unit: Store(run).read(key) for unit, key in self.recorded.units.items()}

    def results(self, change: Change) -> "Forger":
        """Change results.json; keys of parts, run.json, verdict and report follow as far as they can."""
        plain = json.loads((self.run / "results.json").read_text())
        change(plain)
        _write(self.run / "results.json", plain)
        return self.follow()

    def rows(self, change: Callable[[Row], Row | None], failed: Callable[[list[Row]], list[Row]] = list) -> "Forger":
        """Change rows and the list of failed images; figures, verdict and gallery follow."""
        for unit, table in self.tables.items():
            changed = [row for row in map(change, table.to_pylist()) if row is not None]
            entries = failed([vars(entry) for entry in parquet.failed_images(table)]) if unit.start == 0 else None
            metadata = table.schema.metadata if entries is None else {parquet.FAILED: json.dumps(entries)}
            rebuilt = pa.Table.from_pylist(changed, schema=parquet.schema())
            self.tables[unit] = rebuilt.replace_schema_metadata(metadata)
        return self.follow(rows=True)

    def follow(self, *, rows: bool = False, settings: Change | None = None) -> "Forger":
        """Everything that follows from results.json and the rows."""
        with suppress(Exception):  # results that cannot be parsed stay as the forger left them
            self._follow(rows, settings)
        return self.finish()

    def _follow(self, rows: bool, settings: Change | None) -> None:
        found = Results.parse(json.loads((self.run / "results.json").read_text()), self.run / "results.json")
        self._rekey(found, settings)
        if rows and found.runtime is not None:
            summary = self._summary(found, found.runtime)
            new = results(summary)
            kept = ("run", "software", "explained", "randomisation", "baseline", "policy", "reproductions")
            run = replace(found.run, rows=new.run.rows, copies=new.run.copies)
            found = replace(new, **{name: getattr(found, name) for name in kept} | {"run": run})
            if found.policy is not None:
                self._draw(summary, found)
                found = _judged(found, summary.samples)
            _write(self.run / "results.json", found.to_json())

    def _summary(self, found: Results, runtime: Runtime) -> Summary:
        with np.errstate(all="ignore"):
            return summarise(lambda _=None: self.tables.values(), self.recorded.settings, runtime, RunRecord.of(found))

    def _draw(self, summary: Summary, found: Results) -> None:
        """The gallery that the rows give."""
        if self.originals is not None:
            (name,) = found.run.bundles
            maps = (self.run if found.explained is not None else self.originals) / "maps"
            model = _opened(self.originals / "model.onnx")
            images = Dataset.open(self.originals / "images", found.subject.classes, found.subject.class_names)
            showcase(model, images, {name: open_bundle(maps)}, summary, self.run / "gallery")
            return
        card = replace(self.recorded.card, names=found.subject.class_names)
        index = gallery_index(summary, list(found.run.bundles), card)
        (self.run / "gallery" / "gallery.json").write_bytes(encoded_index(index))

    def judged(self) -> "Forger":
        """Checks and verdict as policy and results give them."""
        found = Results.parse(json.loads((self.run / "results.json").read_text()), self.run / "results.json")
        found = _judged(found, self._summary(found, found.runtime).samples if found.runtime else None)
        assert found.policy is not None
        (self.run / "policy.toml").write_bytes(found.policy.text.encode())
        _write(self.run / "results.json", found.to_json())
        return self.follow()

    def _rekey(self, found: Results, settings: Change | None) -> None:
        """Parts under the keys that the results give, and run.json in step."""
        about = to_object(RunRecord.of(found))
        plain = without_paths(about)
        run = json.loads((self.run / "run.json").read_text())["settings"]
        for name in ("subject", "environment"):
            run[name] = plain[name]
        if found.policy is None:
            run = plain
        else:
            run |= {"policy": found.policy.sha256, "fail_on": found.run.fail_on}
            run["fail_on_finding"] = found.run.fail_on_finding
            if found.run.shortened is not None:
                run["shortened"] = to_object(found.run.shortened)
            if found.explained is not None:
                run |= {"maps": {**run["maps"], "method": found.explained.method}, "pool": found.explained.request.pool}
            else:
                run["bundles"] = plain["bundles"]
        if settings is not None:
            settings(run)
        _write(self.run / "run.json", {"schema_version": 1, "settings": run, "settings_digest": digest(run)})
        for path in (self.run / "items").iterdir():
            path.unlink()
        for unit, table in self.tables.items():
            key = Store.key({"about": plain, "unit": [unit.start, unit.stop]})
            (self.run / "items" / f"{key}.parquet").write_bytes(parquet.encoded(key, table))

    def text(self, name: str, change: Callable[[str], str]) -> "Forger":
        """Change a file; only the list of digests follows."""
        path = self.run / name
        before = path.read_text("utf-8")
        after = change(before)
        assert after != before, f"nothing was changed in {name}"
        path.write_bytes(after.encode())
        checksums.write(self.run)
        return self

    def finish(self) -> "Forger":
        """Draw the report again and list every file."""
        report = self.run / "report.html"
        with suppress(Exception):  # the old report stays
            if report.exists():  # of an audit
                report.write_bytes(render_html(load(self.run)).encode())
        checksums.write(self.run)
        return self


@functools.cache
def _opened(model: Path) -> AnyClassifier:
    return auditkit.load(model, settings=auditkit.Settings(device="cpu"))


def _judged(found: Results, samples: Samples | None) -> Results:
    assert found.policy is not None
    policy = parse_policy(found.policy.text, "policy.toml")
    day = date.fromisoformat((found.run.ended or "")[:10])
    return judge(policy, replace(found, policy=policy.to_record()), samples, day, found.run.fail_on)


def _write(path: Path, plain: Any) -> None:
    path.write_text(json.dumps(plain, sort_keys=True, indent=2) + "\n")
