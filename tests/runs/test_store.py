"""A run's folder holds what was finished, whole, whatever happened to the writer."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.data.atomic_write import temporary_name
from auditkit.errors import BadInput, RuntimeFailure
from auditkit.runs.folder import parquet
from auditkit.runs.folder.figures import MetricResult
from auditkit.runs.folder.parquet import COLUMNS, failed_images, schema
from auditkit.runs.folder.results import SCHEMA_VERSION, Results
from auditkit.runs.folder.store import Store, canonical, locked
from tests.support import synthetic_runs

SETTINGS = {"eps1": 0.01, "labels": ["all"], "steps": {"rule": "auto", "tolerance": 5e-3}}


def unit(number: int, rows: int = 3) -> dict[str, Any]:
    """Rows that say which unit they are of."""
    draw = np.random.default_rng(number)
    columns: dict[str, Any] = {name: [None] * rows for name in COLUMNS}
    return columns | {
        "image": [f"{number}.png"] * rows, "label": np.arange(rows), "prob": draw.random(rows),
        "predicted": [row == 0 for row in range(rows)], "flags": [["ties"], [], None][:rows],
        "keep_counts": [np.arange(40) for _ in range(rows)], "curve": [draw.random(40) for _ in range(rows)],
    }  # fmt: skip


def key(number: int) -> str:
    return Store.key({"unit": number})


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    with Store.open(folder, SETTINGS) as store:
        for number in range(4):
            store.write(key(number), unit(number))
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A run with four units."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def results(**parts: Any) -> Results:
    return Results.parse(synthetic_runs.results([], **parts), Path("results.json"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def child(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip


def test_rows_come_back_as_they_were(run: Path) -> None:
    store = Store(run)
    assert store.keys() == sorted(map(key, range(4)))
    for number, table in enumerate(store.tables(map(key, range(4)))):
        assert table.schema.equals(schema())
        assert failed_images(table) == ()
        assert table["image"].to_pylist() == [f"{number}.png"] * 3
        assert table["prob"].to_pylist() == unit(number)["prob"].tolist()
        assert table["flags"].to_pylist() == [["ties"], [], None]
        assert table["curve"].to_pylist() == [curve.astype(np.float32).tolist() for curve in unit(number)["curve"]]
        assert table["alpha"].null_count == 3
    assert not store.has(key(4))
    assert not store.notes
    with pytest.raises(RuntimeFailure, match="lacks unit"):
        store.read(key(4))


def test_a_part_is_plain_parquet_with_its_key(run: Path) -> None:
    where = run / "items" / f"{key(0)}.parquet"
    assert pq.read_table(where).num_rows == 3
    said = pq.read_metadata(where)
    assert said.metadata[b"auditkit.key"].decode() == key(0)
    assert said.metadata[b"auditkit.schema_version"] == b"1"
    assert said.row_group(0).column(0).compression == "ZSTD"


def test_nan_is_not_null(tmp_path: Path) -> None:
    with Store.open(tmp_path, {}) as store:
        store.write(key(0), unit(0) | {"alpha": [np.nan, None, np.inf]})
        assert np.isnan(store.read(key(0))["alpha"][0].as_py())
        assert store.read(key(0))["alpha"].to_pylist()[1:] == [None, np.inf]


def test_equal_tables_give_equal_bytes(run: Path, tmp_path: Path) -> None:
    """Whatever the order of columns, the pieces, the offsets and the metadata that the rows come with."""
    table = Store(run).read(key(1))
    padded = pa.concat_tables([table.slice(1), table, table]).combine_chunks().slice(2, 3)
    forms = (
        table,
        table.select(sorted(COLUMNS)),
        pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        padded,
        table.replace_schema_metadata({"pandas": "x"}),
        unit(1),
    )
    with Store.open(tmp_path / "other", {}) as store:
        for form in forms:
            store.write(key(1), form)
            name = f"items/{key(1)}.parquet"
            assert (store.folder / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize(("column", "values"), [
    ("label", [0, 1, 1.5]), ("label", [0, 1, 2**40]), ("flags", ["ties", None, None]), ("predicted", [1, 0, 0]),
    ("prob", ["0.5", None, None]), ("image", [1, 2, 3]), ("image", ["\udcff", "a", "b"]), ("label", [0, 1]),
    ("curve", [0.5, None, None]), ("label", pa.array([0, 1, 2])), ("prob", pa.array([0, 1, 2], pa.float32())),
])  # fmt: skip
def test_a_column_that_does_not_fit_is_named(tmp_path: Path, column: str, values: Any) -> None:
    with Store.open(tmp_path, {}) as store:
        with pytest.raises(ValueError, match=column):
            store.write(key(0), unit(0) | {column: values})
        assert store.keys() == []


def test_missing_and_unknown_columns_are_named(tmp_path: Path) -> None:
    short = {name: values for name, values in unit(0).items() if name != "beta"}
    with Store.open(tmp_path, {}) as store:
        with pytest.raises(ValueError, match="'beta'"):
            store.write(key(0), short)
        with pytest.raises(ValueError, match="'beta', 'betta'"):
            store.write(key(0), short | {"betta": [None] * 3})
        table = pa.Table.from_pydict(unit(0), schema())
        with pytest.raises(ValueError, match="twice"):
            store.write(key(0), table.append_column("beta", table["beta"]))


def test_names_that_are_no_keys_are_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path, {}) as store, pytest.raises(ValueError, match="not a key"):
        store.write("../elsewhere", unit(0))


def test_a_reader_writes_nothing(run: Path) -> None:
    (run / "items" / f"{key(0)}.parquet").write_bytes(b"torn")
    before = content(run)
    store = Store(run)
    assert not store.has(key(0))
    assert not store.has(key(0))
    assert len(store.notes) == 1
    assert store.settings() == SETTINGS
    for forbidden in (lambda: store.write(key(0), unit(0)), lambda: store.finish(results())):
        with pytest.raises(RuntimeError, match="only reads"):
            forbidden()
    assert content(run) == before


def damaged(run: Path, number: int, broken: bytes) -> str:
    """What is said of a part with this content, which must not be used."""
    where = run / "items" / f"{key(number)}.parquet"
    where.write_bytes(broken)
    with Store.open(run, SETTINGS) as store:
        assert not store.has(key(number))
        assert where.with_name(where.name + ".damaged").read_bytes() == broken
        assert len(store.keys()) == 3
        store.write(key(number), unit(number))
        assert store.has(key(number))
    assert len(store.notes) == 1
    return store.notes[0]


@pytest.mark.parametrize("tenths", range(10))
def test_a_torn_part_is_moved_aside(run: Path, tenths: int) -> None:
    whole = (run / "items" / f"{key(1)}.parquet").read_bytes()
    assert "is cut short" in damaged(run, 1, whole[: len(whole) * tenths // 10])


def test_a_part_short_of_a_byte_or_with_one_more(run: Path) -> None:
    whole = (run / "items" / f"{key(1)}.parquet").read_bytes()
    for broken in (whole[:-1], whole[1:], whole + b"\0", whole + whole, b"not Parquet at all", bytes(len(whole))):
        assert "is cut short" in damaged(run, 1, broken)


def test_no_flipped_bit_goes_unseen(run: Path) -> None:
    """Parquet itself reads many of these without a word."""
    where = run / "items" / f"{key(2)}.parquet"
    whole = where.read_bytes()
    store = Store(run)
    for place in range(0, len(whole), 17):
        where.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert not store.has(key(2)), place
    where.write_bytes(whole)
    assert store.has(key(2))


def test_sound_parquet_of_another_maker_is_not_used(run: Path, tmp_path: Path) -> None:
    pq.write_table(Store(run).read(key(1)), tmp_path / "foreign")
    assert "cut short, or was changed" in damaged(run, 1, (tmp_path / "foreign").read_bytes())


def test_a_renamed_part_is_not_used(run: Path) -> None:
    one, two = (run / "items" / f"{key(number)}.parquet" for number in (1, 2))
    aside = one.rename(run / "aside")
    two.rename(one)
    aside.rename(two)
    with Store.open(run, SETTINGS) as store:
        assert [store.has(key(number)) for number in range(4)] == [True, False, False, True]
    assert [note for note in store.notes if f"holds another unit, {key(2)[:12]}" in note and key(1) in note]
    assert len(store.notes) == 2


def test_left_overs_are_removed_and_nothing_else(run: Path) -> None:
    left_over = [f"items/{temporary_name()}", temporary_name()]
    for name in left_over:
        (run / name).write_bytes(b"half")
    before = content(Path(run))
    with Store.open(run, SETTINGS) as store:
        assert store.keys() == sorted(map(key, range(4)))
    assert before.keys() - content(run).keys() == {*left_over}


def test_what_auditkit_did_not_write_is_refused_and_kept(run: Path) -> None:
    (run / "items" / "notes.tmp").write_text("the owner's")
    before = content(run)
    with pytest.raises(BadInput, match=r"holds 'items/notes.tmp', which auditkit did not write"):
        Store(run).require_usable()
    with pytest.raises(BadInput, match="move it elsewhere"), Store.open(run, SETTINGS):
        pass
    assert content(run) == before


@pytest.mark.parametrize(("change", "said"), [
    ({"eps1": 0.1}, "settings.eps1: 0.01 (run) / 0.1 (now)"),
    ({"eps1": "0.01"}, 'settings.eps1: 0.01 (run) / "0.01" (now)'),
    ({"eps1": None}, "settings.eps1: 0.01 (run) / null (now)"),
    ({"labels": ["all", "top5"]}, 'settings.labels.1: absent (run) / "top5" (now)'),
    ({"labels": "all"}, 'settings.labels: ["all"] (run) / "all" (now)'),
    ({"steps": {"rule": "auto", "tolerance": np.float32(5e-3)}}, "settings.steps.tolerance: 0.005 (run) / 0.00499"),
    ({"steps": {"rule": "auto"}}, "settings.steps.tolerance: 0.005 (run) / absent (now)"),
    ({"seed": 0}, "settings.seed: absent (run) / 0 (now)"),
])  # fmt: skip
def test_other_settings_are_refused_and_shown(run: Path, change: dict[str, Any], said: str) -> None:
    before = content(run)
    with pytest.raises(BadInput) as refusal, Store.open(run, SETTINGS | change):
        pass
    assert said in str(refusal.value)
    assert content(run) == before


def test_equal_settings_in_other_forms_go_on(run: Path) -> None:
    other = dict(reversed(SETTINGS.items())) | {"eps1": np.float64(0.01), "labels": ("all",)}
    with Store.open(run, other) as store:
        assert store.has(key(3))


@pytest.mark.parametrize(("text", "said"), [
    ("{", "not JSON"), ("[]", "holds a list, expected an object"), ("{}", "schema_version None"),
    ('{"schema_version": 2}', "schema_version 2"),
    ('{"schema_version": 1}', "digest"), ('{"schema_version": 1, "settings": {}, "settings_digest": "0"}', "digest"),
])  # fmt: skip
def test_a_foreign_run_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadInput, match=said), Store.open(tmp_path, {}):
        pass
    assert names(tmp_path) == ["run.json"]


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match=r"not a run \(it has 'thesis.tex'"), Store.open(tmp_path, {}):
        pass
    with pytest.raises(BadInput, match="not a folder"), Store.open(tmp_path / "thesis.tex", {}):
        pass
    assert names(tmp_path) == ["thesis.tex"]
    with pytest.raises(BadInput, match="is not a run"):
        Store(tmp_path).settings()


def test_a_run_killed_at_birth_is_begun_again(tmp_path: Path) -> None:
    for name in (".lock", temporary_name()):
        (tmp_path / name).write_text("")
    with Store.open(tmp_path, SETTINGS) as store:
        assert store.settings() == SETTINGS
    assert names(tmp_path) == [".lock", "items", "run.json"]


HOLD = """
import sys, time
from auditkit.runs.folder.store import Store
with Store.open(sys.argv[1], {}):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_writer_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with child(HOLD, str(tmp_path / "run")) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BadInput) as refusal, Store.open(tmp_path / "run", {}):
            pass
        assert str(refusal.value) == f"{tmp_path / 'run'} is in use by another process (pid {holder.pid})."
        holder.kill()
    assert (tmp_path / "run" / ".lock").read_text() == str(holder.pid)
    mine = f"pid {os.getpid()}"
    with Store.open(tmp_path / "run", {}), pytest.raises(BadInput, match=mine), Store.open(tmp_path / "run", {}):
        pass
    with Store.open(tmp_path / "run", {}):
        pass


def test_without_flock_the_lock_is_a_file(tmp_path: Path) -> None:
    with locked(tmp_path, by_existence=True):
        with pytest.raises(BadInput, match="If it is gone, remove"), locked(tmp_path, by_existence=True):
            pass
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(BadInput, match=r"\.lock is a link"), Store.open(tmp_path / "run", {}):
        pass
    with pytest.raises(RuntimeFailure, match="cannot be locked"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "years of work"


def test_a_part_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def replaced(source: Any, target: Any, **folders: int) -> None:
        seen.append("rename")
        replace(source, target, **folders)

    with Store.open(tmp_path, {}) as store:
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        store.write(key(0), unit(0))
    assert seen == ["file", "rename", "folder"]


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_what_cannot_be_brought_to_the_disk_is_not_there(
    run: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, number: int
) -> None:
    calls = iter(range(1, 9))

    def full(descriptor: int) -> None:
        if next(calls) == fails_at:
            raise OSError(number, os.strerror(number))

    before = content(run)
    with Store.open(run, SETTINGS) as store:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RuntimeFailure, match=os.strerror(number)):
            store.write(key(8), unit(8))
        monkeypatch.undo()
        assert not store.has(key(8))
    assert content(run) == before


def test_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    denied = r"cannot be used \(Permission denied\)"
    with pytest.raises(RuntimeFailure, match=denied), Store.open(tmp_path / "run", {}):
        pass


def test_the_callers_own_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), Store.open(tmp_path, {}):
        (tmp_path / "nothing").read_bytes()


def test_results_are_valid_json_and_the_same_each_time(run: Path) -> None:
    metric = MetricResult(
        "insertion", "maps", "all", "gray", 0.01, 1e-3, "16", (0.0, 1.0), 1 / 3, np.nan, -np.inf, 0.95, 3
    )
    odd = replace(
        results(), metrics=(metric,), limitations=("Ä\udcff",), environment={"system": "x86_64", "device": "cpu"}
    )
    with Store.open(run, SETTINGS) as store:
        with pytest.raises(BadInput, match="not finished"):
            store.results()
        store.finish(odd)
        first = (run / "results.json").read_bytes()
        store.finish(replace(odd, environment=dict(reversed(odd.environment.items()))))
    assert (run / "results.json").read_bytes() == first
    plain = json.loads(first, parse_constant=pytest.fail)
    assert plain == Store(run).plain_results()
    (entry,) = plain["metrics"]
    assert (entry["value"], entry["low"], entry["high"], entry["n"]) == (1 / 3, None, None, 3)
    assert (entry["range"], plain["limitations"], plain["verdict"]) == ([0, 1], ["Ä\udcff"], None)
    assert plain["schema_version"] == SCHEMA_VERSION == 2
    assert list(plain) == sorted(plain)
    assert Store(run).results() == replace(odd, metrics=(replace(metric, low=None, high=None),))


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3), np.array([0.5]), {1, 2}, Path("a")])
def test_results_hold_plain_values_alone(run: Path, value: Any) -> None:
    with Store.open(run, SETTINGS) as store:
        with pytest.raises(TypeError, match="has no JSON form"):
            store.finish(replace(results(), limitations=(value,)))
        assert not (run / "results.json").exists()


def test_results_of_another_version_are_refused(run: Path) -> None:
    for version in (99, 1, "2", None):
        (run / "results.json").write_text(json.dumps({"schema_version": version}))
        with pytest.raises(BadInput) as refusal:
            Store(run).results()
        assert str(refusal.value) == (
            f"{run / 'results.json'} has schema_version {version!r}, but this auditkit reads 2; run the command again "
            "in a new folder."
        )
    (run / "results.json").write_text('{"schema_ver')
    with pytest.raises(BadInput, match="not JSON"):
        Store(run).results()


@pytest.mark.parametrize(("change", "message"), [
    ({"verdicts": []}, "has an unknown key 'verdicts'"),
    ({"run": {"lines": 3}}, "run has an unknown key 'lines'"),
    ({"run": {"rows": "3"}}, "run.rows is '3', expected an integer"),
    ({"run": {"rows": True}}, "run.rows is True, expected an integer"),
    ({"metrics": None}, "metrics is None, expected a list"),
    ({"metrics": [{"name": "insertion"}]}, r"metrics\[0\] lacks 'bundle'"),
    ({"verdict": "perfect"}, "verdict is 'perfect', expected one of pass, fail, inconclusive, measured"),
    ({"failed_images": [{"image": "3", "reason": 7}]}, r"failed_images\[0\].reason is 7, expected a text"),
    ({"subject": {"model": {"path": 3}}}, "subject.model.path is 3, expected a text"),
    ({"subject": {"model": "function"}}, "subject.model is 'function', expected one of callable"),
    ({"settings": {"range": [0.0]}}, r"settings.range is \[0.0\], expected a list of 2"),
    ({"settings": {"confidence": 10**400}}, "settings.confidence is 10*, expected a finite number below 9"),
])  # fmt: skip
def test_results_that_do_not_fit_are_refused_by_their_key(run: Path, change: dict[str, Any], message: str) -> None:
    (run / "results.json").write_text(json.dumps(synthetic_runs.results([], **change)))
    with pytest.raises(BadInput, match=message):
        Store(run).results()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from(["$float", "nan", "1", "$array", np.float32(0.5), np.int64(1), np.array([1, 2])]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("ab$", max_size=2) | st.sampled_from(["$float", "$$float", "$array"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def pinned(value: Any) -> Any:
    """A second account of when two values are the same."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, tuple(value.shape), value.tobytes()
    if isinstance(value, np.generic):
        return pinned(value.item())
    if isinstance(value, dict):
        return "dict", frozenset((name, pinned(held)) for name, held in value.items())
    if isinstance(value, list):
        return "list", tuple(map(pinned, value))
    return type(value).__name__, repr(value)


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_keys_are_equal_when_all_is_equal_and_only_then(one: Any, two: Any) -> None:
    assert (Store.key(one) == Store.key(two)) == (pinned(one) == pinned(two))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=2, max_size=4), st.data())
def test_a_change_anywhere_changes_the_key(parts: dict[str, Any], data: st.DataObject) -> None:
    assert Store.key(dict(reversed(parts.items()))) == Store.key(parts)
    name = data.draw(st.sampled_from(sorted(parts)))
    assert Store.key(parts | {name: [parts[name]]}) != Store.key(parts)
    assert Store.key({other: held for other, held in parts.items() if other != name}) != Store.key(parts)
    assert Store.key({"deep": [parts]}) != Store.key({"deep": [parts, None]})


def test_arrays_count_by_their_content() -> None:
    base = np.arange(6.0).reshape(2, 3)
    others = [base.T, base.reshape(3, 2), base.astype(np.float32), np.nextafter(base, 9), base[0], base.tolist()]
    keys = {Store.key({"array": other}) for other in (base, *others)}
    assert len(keys) == 7
    assert Store.key({"array": np.asfortranarray(base)}) == Store.key({"array": base.copy()})


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, object(), Path("a"), np.array([None]), np.datetime64("2020"), 1j])
def test_what_has_no_content_to_count_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be part of a digest"):
        canonical({"value": value})


def test_importing_the_store_is_cheap() -> None:
    code = "import sys, auditkit.runs.folder.store; print('pyarrow' in sys.modules)"
    with child(code) as done:
        assert done.communicate()[0] == "False\n"
    with pytest.raises(AttributeError, match="ITEMZ"):
        parquet.ITEMZ  # noqa: B018


def test_the_columns_that_others_rely_on_come_first() -> None:
    relied_on = (
        "image,label,bundle,infill,prob,predicted,insertion,insertion_error,deletion,deletion_error,alpha,beta,"
        "saliency_metric,box_degenerate,pointing_hit,iou,tied_fraction,flags,keep_counts,curve,error"
    )
    assert schema().names[:21] == relied_on.split(",")
    assert all(field.nullable for field in schema())
