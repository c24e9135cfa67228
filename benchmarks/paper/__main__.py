"""Measure the paper's tables again.

    python -m benchmarks.paper cifar10 -o FOLDER --assets FOLDER [--images 300] [--all-labels 100] [--steps 4000]
    python -m benchmarks.paper settling -o FOLDER --assets FOLDER [--images 25]      (after cifar10, in its folder)
    python -m benchmarks.paper order -o FOLDER --assets FOLDER [--images 100]        (the same)
    python -m benchmarks.paper upsampling -o FOLDER --assets FOLDER [--images 100]   (the same)
    python -m benchmarks.paper price -o FOLDER --assets FOLDER [--images 150]
    python -m benchmarks.paper photographs -o FOLDER --assets FOLDER [--images 20]
    python -m benchmarks.paper ten -o FOLDER --assets FOLDER [--images 5]
    python -m benchmarks.paper networks -o FOLDER --assets FOLDER --maskers FOLDER [--images 300]
    python -m benchmarks.paper corners|forgotten|ensembles|precision|differences|cost -o FOLDER --assets FOLDER

Every part goes on where it was cut short: the same command again takes what is in FOLDER. Each writes a JSON object and
Markdown into FOLDER, with the machine, the versions and the command, and the paper's figures as SVG.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import auditkit
from auditkit.cli.options import method_options
from auditkit.methods.mask.method import QUALITIES
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.read import Limits
from benchmarks.paper import (
    cifar10,
    cost,
    differences,
    imagenet,
    networks,
    order,
    plots,
    precision,
    price,
    settling,
    tables,
    upsampling,
    work,
)
from benchmarks.reporting import origin

PARTS: dict[str, Callable[[work.Study, argparse.Namespace], dict[str, Any]]] = {
    "cifar10": lambda study, asked: cifar10.measured(study, asked.all_labels),
    "settling": lambda study, _asked: settling.measured(study),
    "order": lambda study, _asked: order.measured(study),
    "upsampling": lambda study, _asked: upsampling.measured(study),
    "price": lambda study, _asked: price.measured(study),
    "photographs": lambda study, _asked: imagenet.main_table(study),
    "ten": lambda study, _asked: imagenet.wide_table(study),
    "corners": lambda study, asked: imagenet.corner_table(study, asked.mapped),
    "forgotten": lambda study, asked: imagenet.forgotten(study, asked.few, asked.stages),
    "ensembles": lambda study, asked: imagenet.ensembles(study, asked.few),
    "precision": lambda study, asked: precision.measured(study, asked.few),
    "differences": lambda study, _asked: differences.measured(study),
    "cost": lambda study, _asked: cost.measured(study),
    "networks": lambda study, asked: networks.measured(study, asked.maskers),
}
SMALL = ("cifar10", "settling", "order", "upsampling", "price", "networks")  # parts on small images
IMAGES = {
    "settling": 25,
    "order": 100,
    "upsampling": 100,
    "price": 150,
    "corners": 80,
    "ten": 5,
}  # where it is not the usual number
STEPS = dict.fromkeys(
    ("cifar10", "settling", "order", "upsampling"), 4000
)  # of every mask, where it is not the usual number

LIMITS = Limits(memory_bytes=2**34)  # a part learns by several options; a ResNet-50 takes 0.5 GiB for each


def study_of(asked: argparse.Namespace) -> work.Study:
    """The model and the images of a part."""
    settings = auditkit.Settings(device=asked.device, precision=asked.precision)
    name = asked.model or ("cifar10_resnet56" if asked.part in SMALL else "resnet50")
    small = name.startswith("cifar10")
    preset, choose = ("imagenet", work.cifar) if small else (asked.preset, work.photographs)
    images = asked.assets / "images" / ("cifar10_test_1000.npz" if small else "nips17_150")
    model = auditkit.load(asked.assets / "models" / f"{name}.onnx", preset=preset, settings=settings, limits=LIMITS)
    assert isinstance(model, OnnxClassifier)
    count = asked.images or IMAGES.get(asked.part, 300 if small else 20)
    chosen, pool = choose(model, images, count)
    if asked.part == "price":
        chosen, pool = work.cifar(model, images, count, skip=price.REPORTED)
    quality = asked.quality or ("full" if asked.part in STEPS else "fast")
    steps = asked.steps or STEPS.get(asked.part, QUALITIES[quality].options.steps)
    return work.Study(model, chosen, pool, asked.out, steps, quality, dict(method_options(asked.option, None)))


def main() -> None:
    """Measure a part, write and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--assets", type=Path, required=True, help="folder with models/ and images/")
    parser.add_argument("--model", help="name of another model in it")
    parser.add_argument("--preset", default="caffe", help="how photographs are prepared for it")
    parser.add_argument("--images", type=int)
    parser.add_argument("--quality", choices=QUALITIES, help="of every mask; fast, or full where they are to settle")
    parser.add_argument(
        "--steps", type=int, help="of every mask; those of the quality, or 4000 where they are to settle"
    )
    parser.add_argument("--option", action="append", help="another option of every mask, such as rate=0.2")
    parser.add_argument("--all-labels", type=int, default=100, help="images with maps for all labels")
    parser.add_argument("--mapped", type=int, default=20, help="photographs whose corners get maps")
    parser.add_argument("--few", type=int, default=8, help="images for forgotten, ensembles, masks in half")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--maskers", type=Path, help="folder of the networks that benchmarks.paper.maskers trained")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    if asked.part == "networks" and not asked.maskers:
        parser.error("networks needs --maskers FOLDER")
    asked.out.mkdir(parents=True, exist_ok=True)
    begin, study = time.perf_counter(), study_of(asked)
    found = PARTS[asked.part](study, asked)
    model = study.model
    head = {
        **origin("benchmarks.paper"), "model": model.file.path.name,
        "model_sha256": model.file.identity, "device": model.settings.device, "precision": model.settings.precision,
        "images": len(study.images), "seconds": round(time.perf_counter() - begin, 1), "maps": study.account,
    }  # fmt: skip
    told = tables.markdown(head | found)
    (asked.out / f"{asked.part}.json").write_text(json.dumps(head | found, indent=1) + "\n")
    (asked.out / f"{asked.part}.md").write_text(told + "\n")
    for table in set(found) & {"two", "ten", "corners"}:
        (asked.out / f"{asked.part}-{table}.svg").write_text(plots.figure(found[table]), encoding="utf-8")
    print(told)


if __name__ == "__main__":
    main()
