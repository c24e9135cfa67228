"""Runs that were changed by someone who knows auditkit: none of them holds."""

import hashlib
import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.runs.evaluate import open_bundles
from auditkit.runs.explain import Explanation
from auditkit.runs.folder import checksums
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.policy import shipped_text
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, verify
from tests.support import onnx_models
from tests.support.forgeries import Forger, Row

POLICY = """schema_version = 1
name = "small"
[evaluation]
steps = 4
minimum_images = 4
[randomisation]
images = 2
stages = 2
[[check]]
id = "effort"
metric = "insertion"
min = 0.99
severity = "high"
[[suppression]]
check = "effort"
reason = "a test"
approver = "nobody"
expires = 2999-01-01
"""


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, seven images of which one is torn, and two audits: of maps made here, and of supplied ones."""
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    model = onnx_models.save(onnx_models.convnet(size=8, classes=3), folder)
    names = 'names = ["cat", "dog", "eel"]'
    model.with_suffix(".toml").write_text(
        f'schema_version = 1\n[preprocessing]\npreset = "unit"\nresize = "none"\n[classes]\n{names}\n'
    )
    for number in range(7):
        (folder / "images" / ("cat", "dog")[number % 2]).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        picture.save(folder / "images" / ("cat", "dog")[number % 2] / f"{number}.png")
    (folder / "images" / "cat" / "6.png").write_bytes(b"torn")
    opened = auditkit.load(model, settings=auditkit.Settings(device="cpu"))
    images, policy = Dataset.open(folder / "images", 3, opened.card.names), parse_policy(POLICY, "small.toml")
    bundle = auditkit.Bundle(folder / "maps", model=str(model), method="random")
    for image in images.ids:
        bundle.add([image] * 3, [0, 1, 2], rng.standard_normal((3, 8, 8)).astype(np.float32))
    command = ("auditkit", "audit", "model.onnx", "images")
    audit(opened, images, AuditRequest(policy, Explanation("gradient-input"), command=command), folder / "run")
    supplied = AuditRequest(policy, None, command=command, bundles=open_bundles([folder / "maps"]),
                            baseline=folder / "run")  # fmt: skip
    audit(opened, images, supplied, folder / "supplied")
    return folder


def _originals(audits: Path, name: str) -> Originals:
    more = {"heatmaps": {"maps": audits / "maps"}, "baseline": audits / "run"} if name == "supplied" else {}
    return Originals(audits / "model.onnx", audits / "images", device="cpu", **more)


def _answer(audits: Path, run: Path, name: str) -> tuple[str, list[str]]:
    """The answer from the folder alone where that is that it does not hold; else with the originals."""
    alone = verify(run)
    assert alone.answer != "holds"  # nothing holds whose originals were not seen
    if alone.problems:
        return alone.answer, alone.problems
    found = verify(run, _originals(audits, name))
    return found.answer, [*found.problems, *found.unchecked]


def _set(*path: str | int, to: Any) -> Callable[[Forger], Any]:
    """A change of one entry of results.json."""

    def change(plain: Any) -> None:
        for name in path[:-1]:
            plain = plain[name]
        assert plain[path[-1]] != to
        plain[path[-1]] = to

    return lambda forger: forger.results(change)


def _results(change: Callable[[dict[str, Any]], Any]) -> Callable[[Forger], Any]:
    return lambda forger: forger.results(change)


def _rows(change: Callable[[Row], Row | None]) -> Callable[[Forger], Any]:
    return lambda forger: forger.rows(change)


def _page(change: Callable[[str], str]) -> Callable[[Forger], Any]:
    return lambda forger: forger.text("report.html", change)


def _perfect(row: Row) -> Row:
    """A row whose curve, area and ratios agree with each other, and are better than they were."""
    if row["bundle"].startswith("control:") or row["error"] or row["curve"] is None:
        return row
    curve = [*[row["prob"]] * (len(row["curve"]) - 1), row["curve"][-1]]
    return row | {"curve": curve, "insertion": row["prob"], "alpha": 1.0, "beta": 1.0, "insertion_error": 0.0}


def _policy(change: Callable[[str], str]) -> Callable[[Forger], Any]:
    """Another policy in all places, and the verdict that it gives."""

    def forge(forger: Forger) -> None:
        text = change((forger.run / "policy.toml").read_text())
        forger.results(lambda plain: plain["policy"].update(text=text))
        forger.judged()

    return forge


def _renamed(name: str) -> Callable[[Forger], Any]:
    """A policy of another name, as far as the forger's own auditkit can judge by it."""

    def forge(forger: Forger) -> None:
        text = (forger.run / "policy.toml").read_text().replace('"small"', f'"{name}"')
        digest = hashlib.sha256(text.encode()).hexdigest()
        (forger.run / "policy.toml").write_bytes(text.encode())
        forger.results(lambda plain: plain["policy"].update(name=name, text=text, sha256=digest))

    return forge


def _file(name: str, content: bytes = b"<p>All is well.</p>", *, listed: bool = True) -> Callable[[Forger], Any]:
    def forge(forger: Forger) -> None:
        (forger.run / name).parent.mkdir(exist_ok=True)
        (forger.run / name).write_bytes(content)
        if listed:
            digest = checksums._digest(forger.run / name)
            with (forger.run / "SHA256SUMS").open("a") as stream:
                stream.write(f"{digest}  {name}\n")

    return forge


def _picture(forger: Forger, change: Callable[[Path], None]) -> None:
    change(next((forger.run / "gallery").glob("*-map.png")))
    forger.finish()


def _gallery(change: Callable[[dict[str, Any]], Any]) -> Callable[[Forger], Any]:
    def forge(forger: Forger) -> None:
        path = forger.run / "gallery" / "gallery.json"
        plain = json.loads(path.read_text())
        change(plain)
        path.write_text(json.dumps(plain, sort_keys=True, indent=1) + "\n")
        forger.finish()

    return forge


def _swap_roles(plain: dict[str, Any]) -> None:
    for entry in plain["entries"]:
        entry["role"] = {"best": "worst", "worst": "best"}.get(entry["role"], entry["role"])


def _any_page_and_another_numpy(forger: Forger) -> None:
    forger.results(lambda plain: plain["software"].update(numpy="1.0"))
    (forger.run / "report.html").write_text("<p>All is well.</p>")
    checksums.write(forger.run)


def _another_version(forger: Forger) -> None:
    def change(plain: dict[str, Any]) -> None:
        plain["limitations"].clear()
        plain["tool"]["version"] = plain["software"]["auditkit"] = plain["environment"]["auditkit"] = "9.9"

    forger.results(change)


def _maps_of_another_method(forger: Forger) -> None:
    """The maps said to be of integrated gradients, in every place that says so."""
    header = forger.run / "maps" / "bundle.json"
    name = "integrated-gradients(steps=32, seed=0)"
    header.write_text(header.read_text().replace("gradient-input(seed=0)", name))
    from auditkit.data.bundles import open_bundle
    from auditkit.runs.evaluation.plan import bundle_digest

    def change(plain: dict[str, Any]) -> None:
        run = plain["run"]
        run["bundles"] = {"gradient-input": bundle_digest(open_bundle(forger.run / "maps"))}
        run["bundle_methods"] = {"gradient-input": name}
        plain["explained"]["method"] = name
        plain["explained"]["request"].update(method="integrated-gradients")

    forger.results(change)


def _randomised_maps(forger: Forger) -> None:
    """Maps of a stage turned upside down, with the figures that they give."""
    from auditkit.data.bundles import open_bundle
    from auditkit.records import to_json
    from auditkit.runs.randomisation import stage_result
    from auditkit.verdict.verify.consistency import stages

    path = next((forger.run / "randomised" / "stage-2" / "maps").glob("*.npy"))
    np.save(path, np.load(path)[:, ::-1])
    changed, original = open_bundle(path.parents[1]), open_bundle(forger.run / "maps")
    entry = stages(forger.recorded)[1]
    pairs = [(original.get(each.image, each.label), changed.read(each)) for each in changed.entries]
    figures = stage_result(2, entry.layers, entry.share, [a for a, _ in pairs], [b for _, b in pairs], 0.95)
    forger.results(lambda plain: plain["randomisation"]["series"].__setitem__(1, to_json(figures)))


def _drop_image(forger: Forger) -> None:
    forger.rows(lambda row: None if row["image"] == "cat/0.png" else row)


def _image_said_to_have_failed(forger: Forger) -> None:
    entry = {"image": "cat/0.png", "reason": "it is torn."}
    forger.rows(lambda row: None if row["image"] == "cat/0.png" else row, lambda entries: [entry, *entries])


def _failed_image_forgotten(forger: Forger) -> None:
    forger.rows(lambda row: row, lambda entries: [])


def _other_reason(forger: Forger) -> None:
    forger.rows(lambda row: row, lambda entries: [entry | {"reason": "it is too dark."} for entry in entries])


def _no_rows(forger: Forger) -> None:
    """A run whose maps are said to have been useless."""

    def change(plain: dict[str, Any]) -> None:
        names = ("metrics", "controls", "comparisons", "classes", "reliability", "points", "flags", "failed_images")
        plain.update({name: [] for name in names}, runtime=None, classes_are="predicted")
        plain["run"].update(rows=0, bundles={}, copies=0, bundle_models={}, bundle_methods={})

    forger.tables = {}
    forger.results(change).judged()
    shutil.rmtree(forger.run / "gallery")
    forger.finish()


def _notes_in_all_places(forger: Forger) -> None:
    record = forger.run / "maps" / "explained.jsonl"
    lines = [json.loads(line) | {"notes": [{"kind": "surrogate-gradient", "detail": ""}]}
             for line in record.read_text().splitlines()]  # fmt: skip
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    note = "the gradient is a surrogate: that of the graph without its rounding"
    forger.results(lambda plain: plain["explained"].update(notes=[note]))


def _sittings(forger: Forger) -> None:
    path = forger.run / "sittings.jsonl"
    path.write_text(path.read_text().replace("audit", "evaluate", 1))
    forger.finish()


def _duplicate_key(text: str) -> str:
    return text.replace('"verdict": ', '"verdict": "pass",\n  "verdict": ', 1)


TAMPERED: dict[str, Callable[[Forger], Any]] = {
    # The report
    "any page, and another numpy": _any_page_and_another_numpy,
    "a number in the report": _page(
        lambda text: re.sub(r"0\.(\d)", lambda match: f"0.{9 - int(match[1])}", text, count=1)
    ),
    "a script in the report": _page(lambda text: text.replace("</body>", "<script>document.title = 1</script></body>")),
    "an event handler": _page(lambda text: text.replace("<body", '<body onload="location=1"', 1)),
    "a style that hides a section": _page(lambda text: text.replace("</style>", "#limits{display:none}</style>", 1)),
    "another security policy": _page(lambda text: text.replace("default-src &#39;none&#39;", "default-src *", 1)),
    "a comment": _page(lambda text: text.replace("</body>", "<!-- approved --></body>", 1)),
    "a link": _page(lambda text: text.replace("</h1>", '</h1><a href="https://example.org">approved</a>', 1)),
    "a hidden row": _page(lambda text: text.replace("<tr>", "<tr hidden>", 1)),
    "another picture in the report": _page(
        lambda text: re.sub(r"base64,iVBOR[^\"]{30}", "base64,iVBORw0KGgo", text, count=1)
    ),
    "a moved curve": _page(lambda text: re.sub(r'(class="line b0" d="M[\d.]+ )([\d.]+)', r"\g<1>31", text, count=1)),
    "a removed curve": _page(lambda text: re.sub(r'<path class="line b0" d="M[^"]+"/>', "", text, count=1)),
    "sections in another order": _page(
        lambda text: text.replace('id="checks"', 'id="c"').replace('id="limits"', 'id="checks"')
    ),
    "digits of another script": _page(
        lambda text: re.sub(
            r'(class="line b0" d="M)(\d)', lambda match: f"{match[1]}{chr(0x660 + int(match[2]))}", text
        )
    ),
    "a flag of an arc": _page(lambda text: text.replace("a4.5 4.5 0 1 0 9", "a4.5 4.5 0 1.1 0 9")),
    "a longer number": _page(lambda text: re.sub(r'(class="line b0" d="M[\d]+)', r"\1.00", text, count=1)),
    "an empty report": _page(lambda text: ""),
    "text after the report": _page(lambda text: text + "Approved."),
    # Verdict and policy
    "the verdict": _set("verdict", to="pass"),
    "a check's status": _set("checks", 0, "status", to="suppressed"),
    "a check's limit": lambda forger: forger.results(lambda plain: plain["checks"][-1].update(limit=0.001)),
    "a check removed": _results(lambda plain: plain["checks"].pop()),
    "the reason in words": _set("verdict_reason", to="All is well."),
    "a lax policy called standard": _policy(lambda text: text.replace('"small"', '"standard"')),
    "a lax policy called Standard": _renamed("Standard"),
    "a lax policy called standard and a space": _renamed("standard "),
    "a lax policy called standard with a Cyrillic letter": _renamed("st\u0430ndard"),
    "a lax policy of the same name": lambda forger: forger.text(
        "policy.toml", lambda text: text.replace("0.99", "0.01")
    ),
    "a policy said to be shipped": _set("policy", "shipped", to=True),
    "other settings than the policy's": _results(lambda plain: plain["settings"].update(confidence=0.9)),
    "a policy with other settings": _policy(lambda text: text.replace("steps = 4", "steps = 8")),
    "a suppression by somebody else": lambda forger: forger.results(
        lambda plain: [
            check["suppression"].update(approver="the board") for check in plain["checks"] if "suppression" in check
        ]
    ),
    "severity that fails": lambda forger: forger.results(lambda plain: plain["run"].update(fail_on="low")).follow(
        settings=lambda run: run.update(fail_on=None)
    ),
    "duplicate keys": lambda forger: forger.text("results.json", _duplicate_key),
    # Figures
    "a mean": _set("metrics", 1, "value", to=0.99),
    "an interval": _set("metrics", 1, "high", to=1.0),
    "a control": _set("controls", 2, "value", to=0.001),
    "a comparison": _set("comparisons", 0, "value", to=0.5),
    "a class": _set("classes", 0, "n", to=99),
    "flags removed": _set(
        "flags", to=[{"kind": "ties", "bundle": "maps", "count": 1, "total": 9, "infill": None, "value": None}]
    ),
    "limitations removed": _set("limitations", to=[]),
    "limitations removed, of another version": _another_version,
    "a word of the limitations": _results(
        lambda plain: plain["limitations"].__setitem__(0, "Worst-case figures are bounds.")
    ),
    "a further entry": _results(lambda plain: plain["metrics"][0].update(renormalised=True)),
    "the runtime's error": _set("runtime", "largest", to=0.02),
    "the runtime's reference": _set("runtime", "reference", to="the vendor's own runtime"),
    "a note on the runtime": _set("runtime", "note", to="strict float32 is used"),
    "sampling errors": _results(lambda plain: plain["points"].clear()),
    # Rows
    "perfect rows": _rows(_perfect),
    "one perfect row": _rows(lambda row: _perfect(row) if row["image"] == "dog/1.png" and row["label"] == 0 else row),
    "worse controls": _rows(
        lambda row: row | {"deletion": 1.0} if row["bundle"] == "control:edges" and row["deletion"] is not None else row
    ),
    "probabilities": _rows(
        lambda row: (
            row | {"prediction": (row["prediction"] + 1) % 3, "predicted": row["label"] == (row["prediction"] + 1) % 3}
        )
    ),
    "log-odds": _rows(lambda row: row | {"log_odds": [value + 1 for value in row["log_odds"] or ()]}),
    "log-odds of two labels": _rows(lambda row: row | {"log_odds": row["log_odds"] and row["log_odds"][:2]}),
    "true labels": _rows(lambda row: row | {"truth": row["prediction"]}),
    "digests of maps": _rows(lambda row: row | {"map_digest": "0" * 32}),
    "a curve's points": _rows(
        lambda row: row | {"keep_counts": [1, *row["keep_counts"][1:]]} if row["keep_counts"] else row
    ),
    "an image without rows": _drop_image,
    "an image said to have failed": _image_said_to_have_failed,
    "a failed image forgotten": _failed_image_forgotten,
    "another reason of a failure": _other_reason,
    "another image's name": _rows(lambda row: row | {"image": "cat/x.png"} if row["image"] == "cat/0.png" else row),
    # What was measured
    "another model": _set("subject", "model", "sha256", to="0" * 64),
    "a model's content": _set("subject", "model", "identity", to="0" * 64),
    "a model's name": _set("subject", "model", "path", to="/models/other.onnx"),
    "a device as the model": _set("subject", "model", "path", to="/dev/zero"),
    "other images": _set("subject", "images", "digest", to="0" * 64),
    "the images' name": _set("subject", "images", "source", to="/data/patients"),
    "names of classes": _set("subject", "class_names", to=["dog", "cat", "eel"]),
    "preprocessing": _results(lambda plain: plain["subject"]["card"].update(mean=[0.5, 0.5, 0.5])),
    "a card's digest": _set("subject", "card_origin", "sha256", to="0" * 64),
    "a card's name": _set("subject", "card_origin", "source", to="vendor.toml"),
    "seed": _set("settings", "seed", to=7),
    "labels": _set("settings", "labels", to="top1"),
    "conventions": _results(lambda plain: plain["settings"]["conventions"].update(blur_borders="zero")),
    "a precision that excuses much": _results(
        lambda plain: [plain[name].update(precision="float16") for name in ("environment", "software")]
    ),
    # Maps and randomisation
    "the method, in all places": _maps_of_another_method,
    "the method in the results": _set("explained", "method", to="integrated-gradients(steps=32, seed=0)"),
    "the request's seed": _set("explained", "request", "seed", to=1),
    "notes on the maps": _results(lambda plain: plain["explained"].update(notes=["checked by the vendor"])),
    "maps of a re-initialised model": _randomised_maps,
    "a stage removed": _results(lambda plain: plain["randomisation"]["series"].pop()),
    "a stage's layers": _results(lambda plain: plain["randomisation"]["series"][0].update(layers=["all"])),
    "no randomisation": _set("randomisation", to=None),
    "notes on randomisation": _results(lambda plain: plain["randomisation"].update(notes=["no map changed"])),
    # Gallery
    "roles in the gallery": _gallery(_swap_roles),
    "a figure in the gallery": _gallery(lambda plain: plain["entries"][0].update(prob=0.99)),
    "another image in the gallery": _gallery(lambda plain: plain["entries"].pop(0)),
    "a curve in the gallery": _gallery(lambda plain: plain["entries"][0]["curve"]["score"].__setitem__(0, 1.0)),
    "what the gallery is chosen by": _gallery(lambda plain: plain.update(chosen_by={"gradient-input": "insertion"})),
    "another map in the gallery": lambda forger: _picture(
        forger, lambda path: shutil.copy(sorted(path.parent.glob("*-map.png"))[-1], path)
    ),
    "a turned picture": lambda forger: _picture(forger, lambda path: Image.open(path).rotate(180).save(path)),
    "an animated picture": lambda forger: _picture(forger, _animate),
    "a transparent picture": lambda forger: _picture(forger, _transparent),
    "a faint patch in a picture": lambda forger: _picture(forger, _patch),
    "a picture in other colours": lambda forger: _picture(forger, _coloured),
    "text after a picture": lambda forger: _picture(
        forger, lambda path: _write(path, path.read_bytes() + b"<script>approved</script>")
    ),
    "no gallery": lambda forger: (shutil.rmtree(forger.run / "gallery"), forger.finish()),
    # Files
    "an unlisted file": _file("notes.txt", listed=False),
    "an unlisted part": _file("results.json.part", listed=False),
    "a listed page": _file("summary.html"),
    "a listed page among the maps": _file("maps/summary.html"),
    "a further part": _file(f"items/{'0' * 64}.parquet"),
    "a removed part": lambda forger: (next((forger.run / "items").iterdir()).unlink(), checksums.write(forger.run)),
    "the log of sittings": _sittings,
    "a further entry in the log of sittings": lambda forger: forger.text(
        "sittings.jsonl", lambda text: text.replace("{", '{"approved_by": "the board", ', 1)
    ),
    "a key twice in run.json": lambda forger: forger.text(
        "run.json", lambda text: text.replace("{", '{"settings": "pass",', 1)
    ),
    "a key twice in the gallery": lambda forger: forger.text(
        "gallery/gallery.json", lambda text: text.replace("{", '{"entries": "pass",', 1)
    ),
    "a key twice in the maps' header": lambda forger: forger.text(
        "maps/bundle.json", lambda text: text.replace("{", '{"method": "x",', 1)
    ),
    "text after the list of digests": lambda forger: _write(
        forger.run / "SHA256SUMS", (forger.run / "SHA256SUMS").read_bytes() + b"# approved"
    ),
    "a map's file in digits of another script": _file("maps/maps/\u0663.npy"),
    "no rows at all": _no_rows,
    "notes on the maps, in all places": _notes_in_all_places,
    "a time to come": _set("run", "ended", to="2999-01-01T00:00:00Z"),
    "an end before the start": _set("run", "ended", to="2001-01-01T00:00:00Z"),
    "a further fact about the software": _results(lambda plain: plain["software"].update(approved="by the board")),
    "a further fact about the environment": _results(
        lambda plain: plain["environment"].update(approved="by the board")
    ),
    "a commit in words": _set("run", "git_commit", to="approved by the board"),
    "a long name of a device": _results(lambda plain: plain["software"].update(device_name="approved " * 20)),
    "a version in words": _results(lambda plain: plain["software"].update(numpy="approved")),
    "the tool's name": _set("tool", "name", to="other"),
}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _transparent(path: Path) -> None:
    picture = Image.open(path).convert("RGBA")
    picture.putalpha(0)
    picture.save(path)


def _patch(path: Path) -> None:
    pixels = np.array(Image.open(path).convert("RGB"))
    side = max(1, len(pixels) // 8)
    patch = pixels[:side, :side].astype(int)
    pixels[:side, :side] = np.where(patch > 127, patch - 32, patch + 32)
    Image.fromarray(pixels).save(path)


def _coloured(path: Path) -> None:
    """With a chunk that has other colours shown."""
    content, chunk = path.read_bytes(), b"cICP" + bytes([9, 16, 0, 1])
    _write(path, content[:33] + struct.pack(">I", 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[33:])


def _animate(path: Path) -> None:
    first = Image.open(path).convert("RGB")
    first.save(path, "PNG", save_all=True, append_images=[first.rotate(90)], duration=500)


SUPPLIED: dict[str, Callable[[Forger], Any]] = {
    "a bundle's method": _set("run", "bundle_methods", "maps", to="integrated gradients"),
    "a bundle's name": _set("run", "bundle_paths", "maps", to="/data/others"),
    "a bundle's model": _set("run", "bundle_models", "maps", to=None),
    "a bundle's digest": _set("run", "bundles", "maps", to="0" * 64),
    "a refused bundle": _set("run", "refused_bundles", to={"other": [{"kind": "other", "message": "torn"}]}),
    "changes since the baseline": _results(lambda plain: plain["baseline"]["differences"][0].update(value=0.5)),
    "another baseline": _set("baseline", "a", "results", to="0" * 64),
    "the baseline's name": _set("baseline", "a", "run", to="last year's"),
    "no baseline's notes": _set("baseline", "notes", to=[]),
    "randomisation that was not": _set("randomisation", to=None),
}


CASES = [*(("run", name) for name in TAMPERED), *(("supplied", name) for name in SUPPLIED)]


@pytest.mark.parametrize(("maps", "name"), CASES)
def test_no_tampered_run_holds(audits: Path, tmp_path: Path, maps: str, name: str) -> None:
    run = Path(shutil.copytree(audits / maps, tmp_path / "run"))
    (TAMPERED if maps == "run" else SUPPLIED)[name](Forger(run))
    answer, reasons = _answer(audits, run, maps)
    assert answer != "holds", reasons


def _signed(forger: Forger) -> None:
    for suffix in (".sig", ".asc", ".minisig", ".sigstore.json"):
        (forger.run / f"SHA256SUMS{suffix}").write_text("a signature")


UNCHANGED: dict[str, Callable[[Forger], Any]] = {
    "untouched": lambda forger: None,
    "everything written again": lambda forger: forger.rows(lambda row: row),
    "signatures": _signed,
    "other versions": _results(lambda plain: plain["software"].update(python="3.99", numpy="9.9", pillow="9.9")),
    "coordinates that round otherwise": _page(
        lambda text: re.sub(
            r'(class="line b0" d="M[\d.]+ )([\d.]+)',
            lambda match: f"{match[1]}{float(match[2]) + 0.1:g}",
            text,
            count=1,
        )
    ),
    "another folder of the model": _set("subject", "model", "path", to="/elsewhere/model.onnx"),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_no_reader_sees_changes_nothing(audits: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(audits / "run", tmp_path / "run"))
    UNCHANGED[name](Forger(run))
    found = verify(run, _originals(audits, "run"))
    assert (found.answer, found.problems, found.unchecked) == ("holds", [], [])


def test_an_untouched_run_over_supplied_maps_holds(audits: Path) -> None:
    found = verify(audits / "supplied", _originals(audits, "supplied"))
    assert (found.answer, found.problems, found.unchecked) == ("holds", [], [])


@pytest.mark.parametrize("text", ["a" + ".a" * 20_000 + "=1", "[a" + ".a" * 20_000 + "]", "#" * 300_000])
def test_policies_that_take_minutes_to_read_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="are not read"):
        parse_policy(text, "policy.toml")


def test_a_report_names_a_false_standard(audits: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(audits / "run", tmp_path / "run"))
    _policy(lambda text: text.replace('"small"', '"standard"'))(Forger(run))
    assert "standard (calls itself standard and is not)" in (run / "report.html").read_text()
    (problem,) = verify(run).problems
    assert problem == "the policy calls itself 'standard' and is not the one that auditkit ships"


def test_the_shipped_policy_is_not_called_false(audits: Path, tmp_path: Path) -> None:
    opened = auditkit.load(audits / "model.onnx", settings=auditkit.Settings(device="cpu"))
    policy = parse_policy(shipped_text("explore"), "explore.toml")
    audit(opened, Dataset.open(audits / "images", 3, opened.card.names),
          AuditRequest(policy, Explanation("random")), tmp_path / "run")  # fmt: skip
    assert verify(tmp_path / "run").problems == []


# Entries of results.json that verify cannot prove; docs/SECURITY.md lists them.
HARMLESS = re.compile(
    r"run\.(ended|git_commit)|software\.(device_name|platform|numpy|onnx|pillow|pyarrow|python|scipy)"
    r"|environment\.system|baseline\.b\.run"
    r"|subject\.card\.exif_orientation"  # none of these pictures has an orientation
)


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list) and value:
        for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(entry, (*path, name))
    else:
        yield path


def _mutated(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value * 0.8 + 0.05
    if isinstance(value, str):
        return f"{value[:-1]}{'1' if value[-1:] != '1' else '2'}"
    return "x" if value is None else ["x"]


def _kind(path: tuple[str | int, ...]) -> str:
    return ".".join("*" if isinstance(name, int) else name for name in path)


def _kinds(audits: Path, name: str) -> dict[str, list[tuple[str | int, ...]]]:
    by_kind: dict[str, list[tuple[str | int, ...]]] = {}
    for path in _leaves(json.loads((audits / name / "results.json").read_text())):
        if not HARMLESS.fullmatch(_kind(path)):
            by_kind.setdefault(_kind(path), []).append(path)
    return by_kind


def _holds_though_changed(audits: Path, folder: Path, name: str, path: tuple[str | int, ...]) -> bool:
    def change(plain: Any) -> None:
        for part in path[:-1]:
            plain = plain[part]
        plain[path[-1]] = _mutated(plain[path[-1]])

    run = Path(shutil.copytree(audits / name, folder / _kind(path)))
    Forger(run).results(change)
    holds = _answer(audits, run, name)[0] == "holds"
    shutil.rmtree(run)
    return holds


def test_no_entry_of_the_results_can_be_changed(audits: Path, tmp_path: Path) -> None:
    """Some kinds of entries, drawn anew each time; the slow test takes them all."""
    kinds, rng = _kinds(audits, "run"), np.random.default_rng()
    for kind in rng.choice(sorted(kinds), 8, replace=False).tolist():
        path = kinds[kind][rng.integers(len(kinds[kind]))]
        assert not _holds_though_changed(audits, tmp_path, "run", path), path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "supplied"])
def test_no_entry_of_any_kind_can_be_changed(audits: Path, tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    paths = [paths[rng.integers(len(paths))] for _, paths in sorted(_kinds(audits, name).items())]
    assert [_kind(path) for path in paths if _holds_though_changed(audits, tmp_path, name, path)] == []
