"""A mask for every architecture: python -m benchmarks.zoo FOLDER [NAME ...].

Networks of torchvision and timm, with random weights, are exported by both of torch's exporters; some are also
optimised by onnxruntime at each of its levels. Each file is opened, differentiated and masked, with few steps. A record
of each network is kept in FOLDER, so that a run that was cut short goes on; all of them are printed as one JSON object.
Needs torch, torchvision and timm.
"""

import contextlib
import dataclasses
import io
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import auditkit
from auditkit.data.dataset import Dataset
from auditkit.errors import AuditError
from auditkit.graph.gradient import missing_rules
from auditkit.report.markdown import table
from auditkit.runs.explain import Explanation, explain
from benchmarks.reporting import log, origin

SIDE, CLASSES, OPSET = 64, 10, 18
FEW = (("steps", "3"), ("distractors", "2"))  # options of a mask that show that it can be learned
FEW_PASSES = (("most_passes", "64"),)  # the same where it is learned from differences
EXPORTERS = {"torchscript": False, "dynamo": True}
LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}
# One small network of each family.
TIMM = (
    "botnet26t_256", "repvgg_a0", "cait_xxs24_224", "convnextv2_atto", "dla46_c", "dpn48b", "edgenext_xx_small",
    "efficientvit_b0", "efficientvit_m0", "fasternet_t0", "fastvit_t8", "ghostnet_050", "hardcorenas_a", "hgnetv2_b0",
    "inception_next_atto", "lcnet_050", "levit_128s", "mambaout_femto", "mobilevit_xxs", "mobilevitv2_050",
    "nf_resnet26", "pvt_v2_b0", "regnetz_b16", "repghostnet_050", "repvit_m0_9", "resnest14d", "rexnet_100",
    "selecsls42b", "legacy_seresnet18", "shvit_s1", "skresnet18", "starnet_s050", "swiftformer_xs", "ese_vovnet19b_dw",
    "visformer_tiny", "deit_tiny_patch16_224", "vit_tiny_patch16_224", "mixer_s32_224", "poolformer_s12", "pit_ti_224",
    "convit_tiny", "efficientformer_l1", "efficientformerv2_s0", "eva02_tiny_patch14_224", "tiny_vit_5m_224",
    "hiera_tiny_224", "coatnet_nano_rw_224", "sequencer2d_s", "davit_tiny", "crossvit_tiny_240", "xcit_nano_12_p16_224",
)  # fmt: skip
TORCHVISION = (
    "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5",
    "squeezenet1_1", "efficientnet_b0", "googlenet", "swin_t", "vit_b_32", "vgg11", "alexnet",
)  # fmt: skip
OPTIMISED = (
    "torchvision/mobilenet_v3_small", "torchvision/resnet18", "torchvision/shufflenet_v2_x0_5", "timm/convnextv2_atto",
    "timm/deit_tiny_patch16_224", "timm/efficientvit_m0", "timm/ghostnet_050", "timm/levit_128s", "timm/mobilevit_xxs",
    "timm/pvt_v2_b0",
)  # fmt: skip
LARGE = ("torchvision/alexnet", "torchvision/vgg11")  # of small images, they pool less than a pixel
EXTRA = {
    "torchvision/googlenet": {"aux_logits": False, "init_weights": False},
    "torchvision/vit_b_32": {"image_size": SIDE},
}
FAINT = 1e-3  # new networks scale residual branches, and some their last layer, by so little or by 0
LOUD = 20  # scores that are further apart have a probability that float32 rounds to 1
Record = dict[str, Any]


def network(name: str) -> tuple[Any, int]:
    """A network with random weights, and the side of its images: small, if it takes them."""
    import timm  # noqa: PLC0415 - the table is drawn without these three
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    torch.set_num_threads(1)  # threads that wait for each other waste a busy machine
    library, _, model = name.partition("/")
    wanted = {"num_classes": CLASSES} | EXTRA.get(name, {})
    if library == "torchvision":
        make, attempts = torchvision.models.get_model, [(224 if name in LARGE else SIDE, wanted)]
    else:
        side = timm.models.get_pretrained_cfg(model).input_size[-1]
        make, attempts = timm.create_model, [(SIDE, {**wanted, "img_size": SIDE}), (SIDE, wanted), (side, wanted)]
    for side, options in attempts:
        torch.manual_seed(0)
        with contextlib.suppress(Exception), torch.no_grad():  # of any kind: it does not take this size
            made = make(model, **options)
            _settle(made, torch.randn(4, 3, side, side))
            return made.eval(), side
    raise ValueError(f"{name} cannot be made")


def _settle(made: Any, images: Any) -> None:
    """Make the scores depend on the image, as training does: statistics of noise, nothing muted or loud."""
    import torch  # noqa: PLC0415

    for name, parameter in made.named_parameters():
        if name.endswith("bias") or parameter.abs().max() >= FAINT:
            continue
        if parameter.numel() == max(parameter.shape):  # a scale
            parameter.fill_(0.5)
        else:  # not one number throughout: the sum of normalised features is 0
            parameter.normal_(std=parameter[0].numel() ** -0.5)
    for module in made.modules():
        if hasattr(module, "running_mean"):
            module.momentum = None  # plain averages
    made.train()
    made(images)
    loudest = made.eval()(torch.rand_like(images)).abs().max()
    for module in made.modules():
        if loudest > LOUD and getattr(module, "out_features", None) == CLASSES:
            module.weight.mul_(LOUD / loudest)


def exported(made: Any, side: int, path: Path, dynamo: bool) -> None:
    """The network as a file with an open batch size."""
    import torch  # noqa: PLC0415

    named = {"input_names": ["image"], "output_names": ["logits"], "opset_version": OPSET}
    if dynamo:
        named |= {"dynamic_shapes": ({0: torch.export.Dim("N", min=1, max=64)},)}
    else:
        named |= {"dynamic_axes": {"image": {0: "N"}, "logits": {0: "N"}}}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(made, (torch.rand(2, 3, side, side),), path, dynamo=dynamo, verbose=False, **named)


def optimised(path: Path, level: str) -> Path:
    """What onnxruntime makes of a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath = str(path.with_suffix(f".{level}.onnx"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return path.with_suffix(f".{level}.onnx")


def examined(path: Path, images: Path) -> Record:
    """What becomes of a file: opened, differentiated, masked; or the sentence that says why not."""
    record: Record = {}
    start = time.perf_counter()
    try:
        model = auditkit.load(path, settings=auditkit.Settings(device="cpu", threads=1))
        record["opened_s"] = round(time.perf_counter() - start, 1)
        proto = model.file.proto
        record["operators"] = len({node.op_type for node in proto.graph.node})
        record["no_rule"] = [str(gap) for gap in missing_rules(proto, model.signature.input, model.signature.output)]
        start = time.perf_counter()
        what = Explanation("mask", "top1", FEW).adapted_to(model)
        record["differentiated_s"] = round(time.perf_counter() - start, 1)
        record["check_error"] = max((check.error for check in model.gradient_checks.values()), default=None)
        if what.method == "differences":
            record["instead"] = str(what.notes[0])
            what = dataclasses.replace(what, options=FEW_PASSES)
        start = time.perf_counter()
        bundle = explain(model, Dataset.open(images, CLASSES), what, path.with_suffix(".maps"))
        if all(np.isfinite(heatmap.values).all() and np.ptp(heatmap.values) > 0 for heatmap in bundle):
            record["masked_by"] = what.method
        record["masked_s"] = round(time.perf_counter() - start, 1)
    except AuditError as error:
        record["sentence"] = str(error)
    return record


def files(name: str, folder: Path) -> Iterator[tuple[str, Path | str]]:
    """Every file of a network by its origin, or the reason why its exporter gave none."""
    made, side = network(name)
    for exporter, dynamo in EXPORTERS.items():
        path = folder / f"{exporter}.onnx"
        try:
            exported(made, side, path, dynamo)
        except Exception as error:  # any kind: an exporter of torch does not know the network
            yield exporter, _first_cause(error)
            continue
        yield exporter, path
        for level in LEVELS if name in OPTIMISED else ():
            yield f"{exporter}, {level}", optimised(path, level)


def _first_cause(error: BaseException) -> str:
    """The first line of the error that all others came from."""
    while error.__cause__:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


def measured(name: str, folder: Path) -> Record:
    """The record of one network."""
    record: Record = {"name": name, "files": {}}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        images = Path(scratch) / "images.npz"
        pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8)
        np.savez(images, images=pixels)
        for source, path in files(name, Path(scratch)):
            record["files"][source] = {"not_exported": path} if isinstance(path, str) else examined(path, images)
    return record


def zoo_table(results: Record) -> str:
    """What became of each network's files, of those that onnxruntime optimised, and why some have no learned mask."""
    networks = results["networks"]
    plain = [[record["name"], *(_cell(record, exporter) for exporter in EXPORTERS)] for record in networks]
    by_level = [[record["name"], *(_of_level(record, level) for level in LEVELS)]
                for record in networks if record["name"] in OPTIMISED]  # fmt: skip
    counts, reasons = Counter[str](), list[list[str]]()
    for record in networks:
        counts.update(map(_outcome, record["files"].values()))
        reasons += [
            [record["name"], source, _reason(file)] for source, file in record["files"].items() if _reason(file)
        ]
    total = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    packages = ", ".join(f"{package} {version}" for package, version in results["packages"].items())
    return "\n\n".join([
        f"{len(networks)} networks with random weights ({packages}), {counts.total()} exports and optimised files: "
        f"{total}. The percentage is by how much the gradient differs from the change of scores on noise images.",
        table(["network", *EXPORTERS], plain),
        f"Optimised by onnxruntime, exported by {' / '.join(EXPORTERS)}:",
        table(["network", *LEVELS], by_level),
        "Without a learned mask:",
        table(["network", "file", "reason"], reasons),
    ])  # fmt: skip


def _outcome(file: Record) -> str:
    return "not exported" if "not_exported" in file else str(file.get("masked_by", "refused"))


def _cell(record: Record, source: str) -> str:
    file = record["files"].get(source, {})
    if not file:
        return ""
    return _outcome(file) + (f", {100 * file['check_error']:.1g} %" if file.get("masked_by") == "mask" else "")


def _of_level(record: Record, level: str) -> str:
    return " / ".join(_cell(record, f"{exporter}, {level}") for exporter in EXPORTERS)


def _reason(file: Record) -> str:
    return str(file.get("not_exported") or file.get("sentence") or file.get("instead", "").partition(": ")[2])


def main(folder: Path, names: list[str]) -> None:
    """Measure the networks that have no record yet, and print all records."""
    logging.disable(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for name in names or [*(f"timm/{name}" for name in TIMM), *(f"torchvision/{name}" for name in TORCHVISION)]:
        kept = folder / f"{name.replace('/', '-')}.json"
        if not kept.exists():
            start = time.perf_counter()
            record = measured(name, folder)
            record["seconds"] = round(time.perf_counter() - start, 1)
            kept.write_text(json.dumps(record))
            outcomes = {source: _outcome(file) for source, file in record["files"].items()}
            log({"name": name, "seconds": record["seconds"], **outcomes})
        records.append(json.loads(kept.read_text()))
    packages = {package: metadata.version(package) for package in ("torch", "torchvision", "timm")}
    print(json.dumps({**origin("benchmarks.zoo"), "packages": packages, "networks": records}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
