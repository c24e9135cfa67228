"""Runs that were changed by someone who knows auditkit: none of them holds."""

import functools
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
from onnx import helper
from PIL import Image

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import BadInput
from auditkit.metrics.curves import parse_steps
from auditkit.records import to_object
from auditkit.runs.evaluate import evaluate, open_bundles
from auditkit.runs.evaluation import batch
from auditkit.runs.evaluation.images import probabilities
from auditkit.runs.evaluation.settings import Evaluation
from auditkit.runs.explain import Explanation
from auditkit.runs.folder import checksums
from auditkit.runs.folder.figures import Shortened
from auditkit.runs.pictures import gallery
from auditkit.verdict.audit import AuditRequest, audit
from auditkit.verdict.policy import shipped_text
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify import Originals, originals, verify
from tests.support import gated_models, onnx_models
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


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Open the model once for all runs, which takes longer than most checks; small photographs are JPEGs too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(originals, "open_file", functools.cache(originals.open_file))
        patch.setattr(gallery, "TINY", 4)
        yield


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
            digest = checksums.digest(forger.run / name)
            with (forger.run / "SHA256SUMS").open("a") as stream:
                stream.write(f"{digest}  {name}\n")

    return forge


def _picture(forger: Forger, change: Callable[[Path], None], kind: str = "map.png") -> None:
    change(next((forger.run / "gallery").glob(f"*-{kind}")))
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


def _failed_by_model(name: str) -> Callable[[Forger], Any]:
    """An image that the model is said to fail on."""
    entry = {"image": name, "reason": "the model crashed.", "by_model": True}
    return lambda forger: forger.rows(
        lambda row: None if row["image"] == name else row,
        lambda entries: [*(each for each in entries if each["image"] != name), entry],
    )


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


def _record(change: Callable[[dict[str, Any]], Any]) -> Callable[[Forger], Any]:
    """Another record of the maps, and results that follow it."""

    def forge(forger: Forger) -> None:
        path = forger.run / "maps" / "explained.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        computed = list(dict.fromkeys(line["computed"] for line in lines))
        forger.results(lambda plain: plain["explained"].update(computed=computed))

    return forge


def _image_without_maps(forger: Forger, *, label: int | None = None) -> None:
    """Maps of an image that are gone, with everything that follows."""
    from auditkit.data.bundles import open_bundle
    from auditkit.runs.evaluation.plan import bundle_digest

    def lost(image: str, number: int) -> bool:
        return image == "cat/0.png" and label in (None, number)

    manifest, record = forger.run / "maps" / "manifest.csv", forger.run / "maps" / "explained.jsonl"
    kept = [line for line in manifest.read_text().splitlines(keepends=True)
            if not lost(line.split(",")[0], int(line.split(",")[1]) if line[-2].isdigit() else -1)]  # fmt: skip
    manifest.write_text("".join(kept))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for line in lines:
        digests = {image: {number: digest for number, digest in by_label.items() if not lost(image, int(number))}
                   for image, by_label in line["maps"].items()}  # fmt: skip
        line["maps"] = {image: by_label for image, by_label in digests.items() if by_label}
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    digest = bundle_digest(open_bundle(forger.run / "maps"))
    forger.results(lambda plain: [plain["run"].update(bundles={"gradient-input": digest}), _other_runtime(plain)])
    forger.rows(lambda row: _unmeasured(row) if lost(row["image"], row["label"]) else row)


def _unmeasured(row: Row) -> Row | None:
    if row["bundle"].startswith("control:"):
        return None if row["bundle"].startswith("control:one-map") else row
    kept = ("image", "label", "bundle", "infill", "prob", "predicted", "truth", "prediction")
    empty = {name: None for name in row if name not in kept}
    return row | empty | {"flags": [], "error": "no map for this label"}


def _other_runtime(plain: dict[str, Any]) -> None:
    """A version that is said to have computed the run, so that less is compared exactly."""
    for name in ("environment", "software"):
        plain[name]["onnxruntime"] = "1.19.0"


def _worse_controls(forger: Forger) -> None:
    forger.results(_other_runtime)
    forger.rows(lambda row: row | {"tied_fraction": 0.9, "map_digest": "0" * 32, "deletion": row["deletion"] and 1.0}
                if row["bundle"] == "control:edges" else row)  # fmt: skip


def _sittings(forger: Forger) -> None:
    path = forger.run / "sittings.jsonl"
    path.write_text(path.read_text().replace("audit", "evaluate", 1))
    forger.finish()


def _severities(**severities: str) -> Callable[[Forger], Any]:
    """Other severities that fail, in all places but the command, and the verdict that they give."""
    return lambda forger: forger.results(lambda plain: plain["run"].update(severities)).judged()


def _command(*words: str) -> Callable[[Forger], Any]:
    """A command with further words, in all places that have it."""

    def forge(forger: Forger) -> None:
        path = forger.run / "sittings.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        for entry in entries:
            if "command" in entry:
                entry["command"] += words
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        forger.results(lambda plain: plain["run"]["command"].extend(words))

    return forge


def _shortened(*method: str, total: int = 7, **choices: Any) -> Callable[[Forger], Any]:
    """Something that a budget is said to have left out of a run that was not shortened."""
    shortened = to_object(Shortened(60.0, *method, total=total, **choices))
    return lambda forger: forger.results(lambda plain: plain["run"].update(shortened=shortened))


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
    "a finding that fails": lambda forger: forger.results(
        lambda plain: plain["run"].update(fail_on_finding="critical")
    ),
    "severity that fails, in all places": _severities(fail_on="critical"),
    "a finding that fails, in all places": _severities(fail_on_finding="critical"),
    "no severity that the command says": _command("--fail-on", "low"),
    "no finding that fails, though the command says so": _command("--fail-on-finding=low"),
    "duplicate keys": lambda forger: forger.text("results.json", _duplicate_key),
    # What a budget left out
    "nothing left out": _shortened(),
    "another method left out than maps were made by": _shortened("occlusion", "mask"),
    "images left out": _shortened(images=6),
    "more images at hand": _shortened("gradient-input", "mask", total=8),
    "images taken until they decide": _shortened(until_decided=True),
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
    "worse controls of another runtime": _worse_controls,
    "sampling errors of rows": _rows(
        lambda row: row | {"deletion_error": row["deletion_error"] and row["deletion_error"] / 10}
    ),
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
    "an image said to fail in the model": _failed_by_model("cat/0.png"),
    "a torn image said to fail in the model": _failed_by_model("cat/6.png"),
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
    "where the maps were computed": _record(lambda line: line.update(computed="cuda, strict")),
    "digests of maps in their record": _record(
        lambda line: line.update(maps={image: dict.fromkeys(maps, "0" * 32) for image, maps in line["maps"].items()})
    ),
    "an image without maps": _image_without_maps,
    "a label without a map": functools.partial(_image_without_maps, label=1),
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
    "a faint patch in a photograph": lambda forger: _picture(forger, _faint, "image.jpg"),
    "a comment inside a photograph": lambda forger: _picture(forger, _comment, "image.jpg"),
    "a picture in other colours": lambda forger: _picture(forger, _coloured),
    "text after a picture": lambda forger: _picture(
        forger, lambda path: _write(path, path.read_bytes() + b"<script>approved</script>")
    ),
    "no gallery": lambda forger: (shutil.rmtree(forger.run / "gallery"), forger.finish()),
    # Files
    "an unlisted file": _file("notes.txt", listed=False),
    "an unlisted part": _file("results.json.part", listed=False),
    "a listed page": _file("summary.html"),
    "a listed page with a similar name": _file("report_html"),
    "an empty folder": lambda forger: (forger.run / "approved").mkdir(),
    "an empty stage": lambda forger: (forger.run / "randomised" / "stage-9").mkdir(),
    "a further stage": lambda forger: (
        shutil.copytree(forger.run / "randomised" / "stage-1", forger.run / "randomised" / "stage-9"),
        checksums.write(forger.run),
    ),
    "text in the lock": _file(".lock", b"approved", listed=False),
    "a damaged part": _file(f"items/{'0' * 64}.parquet.damaged"),
    "unfinished work": _file("maps/unfinished.npz"),
    "a further entry in run.json": lambda forger: forger.text(
        "run.json", lambda text: text.replace("{", '{\n  "approved": true,', 1)
    ),
    "a blank line in the gallery's index": lambda forger: forger.text("gallery/gallery.json", lambda text: text + "\n"),
    "a note in the header of a stage": lambda forger: forger.text(
        "randomised/stage-1/bundle.json", lambda text: text.replace('"notes": []', '"notes": ["approved"]')
    ),
    "a stage of another model": lambda forger: forger.text(
        "randomised/stage-1/bundle.json", lambda text: re.sub('"model": "....', '"model": "0000', text)
    ),
    "where a stage was computed": lambda forger: forger.text(
        "randomised/stage-1/explained.jsonl", lambda text: text.replace("cpu, strict", "cuda, strict")
    ),
    "text after the record": lambda forger: forger.text("maps/explained.jsonl", lambda text: text + "approved"),
    "words for a digest": _record(lambda line: line.update(infill="approved")),
    "a map that is not named": _file("maps/maps/000777.npy"),
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


def _faint(path: Path) -> None:
    pixels = np.array(Image.open(path)).astype(int)
    pixels[:4, :4] += np.where(pixels[:4, :4] > 127, -9, 9)
    Image.fromarray(pixels.astype(np.uint8)).save(path, optimize=True, quality=80)


def _comment(path: Path) -> None:
    content = path.read_bytes()
    _write(path, content[:-2] + b"\xff\xfe\x00\x0aapproved" + content[-2:])


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
    "a method that makes the maps": _shortened("gradient-input", "mask"),
}


CASES = [*(("run", name) for name in TAMPERED), *(("supplied", name) for name in SUPPLIED)]


@pytest.mark.parametrize(("maps", "name"), CASES)
def test_no_tampered_run_holds(audits: Path, tmp_path: Path, maps: str, name: str) -> None:
    run = Path(shutil.copytree(audits / maps, tmp_path / "run"))
    (TAMPERED if maps == "run" else SUPPLIED)[name](Forger(run, audits))
    answer, reasons = _answer(audits, run, maps)
    assert answer != "holds", reasons


def _severities_of_the_command(forger: Forger) -> None:
    words = ("--fail-on", "low", "--fail-on=critical", "--fail-on-finding", "low")
    _command(*words, "--", "--fail-on=high")(forger)
    _severities(fail_on="critical", fail_on_finding="low")(forger)


def _signed(forger: Forger) -> None:
    for suffix in (".sig", ".asc", ".minisig", ".sigstore.json"):
        (forger.run / f"SHA256SUMS{suffix}").write_text("a signature")


UNCHANGED: dict[str, Callable[[Forger], Any]] = {
    "untouched": lambda forger: None,
    "everything written again": lambda forger: forger.rows(lambda row: row),
    "signatures": _signed,
    "severities that the command says": _severities_of_the_command,
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


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluations of a model that rates two labels alike: here, and where rounding decides otherwise between them."""
    folder, rng = tmp_path_factory.mktemp("alike"), np.random.default_rng(0)
    weight = rng.standard_normal((4, 192)).astype(np.float32) * np.float32(0.02)
    weight[1] = weight[0]
    nodes = [helper.make_node("Flatten", ["image"], ["flat"]),
             helper.make_node("Gemm", ["flat", "weight", "bias"], ["logits"], transB=1)]  # fmt: skip
    weights = {"weight": weight, "bias": np.array([3, 3 + 4e-6, 1, 0], np.float32)}
    image, logits = onnx_models.value("image", ["N", 3, 8, 8]), onnx_models.value("logits", ["N", 4])
    model = onnx_models.save(onnx_models.model(nodes, [image], [logits], weights), folder)
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))
    opened = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu"))
    images, settings = Dataset.open(folder / "images.npz", 4), Evaluation(steps=parse_steps("4"), labels="top2")
    evaluate(opened, images, {}, settings, folder / "here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "probabilities", lambda model, inputs: probabilities(model, inputs)[:, [1, 0, 2, 3]])
        evaluate(opened, images, {}, settings, folder / "elsewhere")
    return folder


def _other_prediction(row: Row) -> Row:
    """The other of the two labels predicted, and figures as one likes them."""
    return _perfect_control(row | {"prediction": 1 - row["prediction"], "predicted": not row["predicted"]})


def _perfect_control(row: Row) -> Row:
    return _perfect(row | {"bundle": ""}) | {"bundle": row["bundle"]}


def _third_label(row: Row) -> Row:
    """Another label in place of the second one, with the probability that excuses it."""
    return row if row["predicted"] else row | {"label": 2}


@pytest.mark.parametrize(
    ("name", "change", "answer"),
    [
        ("here", lambda row: row, "holds"),
        ("elsewhere", lambda row: row, "could not be checked"),
        ("here", _other_prediction, "does not hold"),
        ("elsewhere", _perfect_control, "does not hold"),
        ("here", _third_label, "does not hold"),
        ("here", lambda row: row | {"alpha": None}, "does not hold"),
    ],
)  # fmt: skip
def test_what_rounding_decides_is_no_excuse_for_other_figures(
    evaluations: Path, tmp_path: Path, name: str, change: Callable[[Row], Row], answer: str
) -> None:
    run = Path(shutil.copytree(evaluations / name, tmp_path / "run"))
    Forger(run).rows(change)
    result = verify(run, Originals(evaluations / "model.onnx", evaluations / "images.npz", device="cpu"))
    assert result.answer == answer, result.problems


def test_a_run_that_left_images_out_holds(tmp_path: Path) -> None:
    """An image on which the model fails, which was allowed; the folder alone does not show that it does."""
    model, pixels = onnx_models.save(gated_models.white(np.nan), tmp_path), np.zeros((3, 8, 8, 3), np.uint8)
    pixels[0] = 255
    np.savez(tmp_path / "images.npz", images=pixels)
    opened = auditkit.load(model, preset="unit", settings=auditkit.Settings(device="cpu", allow_failed=1))
    settings = Evaluation(steps=parse_steps("4"))
    evaluate(opened, Dataset.open(tmp_path / "images.npz", 4), {}, settings, tmp_path / "run")
    result = verify(tmp_path / "run", Originals(model, tmp_path / "images.npz", device="cpu"))
    assert (result.answer, result.problems, result.unchecked) == ("holds", [], [])
    assert verify(tmp_path / "run").answer == "could not be checked"


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
