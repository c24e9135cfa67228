"""What each peer is asked to do: one small class a peer, none of which imports another's framework.

Each is opened with a folder (network.npz, model.onnx, card.json) and runs jobs. Where a peer's own function cannot be
asked for insertion alone, it does what it does for its users: torchcam and OpenVINO-XAI take deletion along.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import network
from benchmarks.peers.job import Answer, Job, equal_steps, softmax

Array = np.ndarray[Any, Any]


class Auditkit:
    """From arrays in memory to metrics with intervals: the bundle is written, opened and checked, too."""

    packages = ("onnxruntime-gpu", "onnxruntime", "numpy")

    def __init__(self, folder: Path) -> None:
        import auditkit  # noqa: PLC0415

        settings = auditkit.Settings(device="cpu", threads=int(os.environ.get("OMP_NUM_THREADS", "0")))
        card = json.loads((folder / "card.json").read_text())
        self.model = auditkit.load(folder / "model.onnx", preset=card["preset"], settings=settings)

    def run(self, job: Job, points: Any, _batch: int, labels: str = "top1", **settings: Any) -> Answer:
        """`points` may be 'auto' or 'exact'; `settings` are those of evaluate."""
        import auditkit  # noqa: PLC0415

        plain: dict[str, Any] = {"controls": False, "deletion": False, "saliency": "none"}
        with tempfile.TemporaryDirectory() as name:
            bundle = auditkit.Bundle(Path(name) / "maps")
            bundle.add([str(image) for image in job.image], job.label.tolist(), job.maps, layout="NHW")
            found = auditkit.evaluate(self.model, job.pictures, bundle, labels=labels, steps=points, **plain | settings)
        held = {(row["image"], row["label"]): row for row in found.rows if not row["error"]}
        rows = [held[str(image), label] for image, label, _ in job.curves()]
        asked = sum(len(row["keep_counts"]) - 2 for row in rows) + 2 * len(set(job.image.tolist()))
        more = {"keep_counts": [row["keep_counts"] for row in rows], "curves": [row["curve"] for row in rows]}
        return Answer([row["insertion"] for row in rows], asked, more)


class Paper:
    """The paper's loop: one image at a time, sorted anew at every step; the mean, without the empty image."""

    packages = ("torch", "numpy")

    def __init__(self, folder: Path) -> None:
        self.network = network.in_torch(folder)

    def run(self, job: Job, points: int, _batch: int) -> Answer:
        """Its step is a whole number of pixels."""
        import torch  # noqa: PLC0415

        pixels, areas, rows = job.pixels, list[float](), 0
        with torch.inference_mode():
            for image, label, scores in job.curves():
                given, found = torch.from_numpy(job.inputs[image : image + 1]), list[float]()
                for kept in range(pixels // points, pixels + 1, pixels // points):
                    mask = np.zeros(pixels, np.float32)
                    mask[np.argsort(scores.ravel())[-int(kept / pixels * pixels) :]] = 1
                    shown = given * torch.from_numpy(mask.reshape(scores.shape))
                    found.append(torch.softmax(self.network(shown), dim=1)[0, label].item())
                areas.append(float(np.mean(found)))
                rows += len(found)
        return Answer(areas, rows)


class Rise:
    """RISE's loop: many images together, each step put into a batch on the host and given to torch again."""

    packages = ("torch", "numpy", "scipy")

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415
        from scipy.ndimage import gaussian_filter  # noqa: PLC0415

        self.network = network.in_torch(folder)
        spike = np.zeros((11, 11))
        spike[5, 5] = 1
        kernel = torch.zeros(3, 3, 11, 11)
        kernel[range(3), range(3)] = torch.from_numpy(gaussian_filter(spike, 5)).float()
        self.blurred = lambda images: torch.nn.functional.conv2d(images, kernel, padding=5)

    def run(self, job: Job, points: int, batch: int) -> Answer:
        """From the blurred image to the image."""
        import torch  # noqa: PLC0415

        parts = range(0, len(job.image), batch)
        with torch.inference_mode():
            curves = [self._curves(job, slice(start, start + batch), job.pixels // points) for start in parts]
        return Answer(np.concatenate([equal_steps(part) for part in curves]).tolist(), sum(p.size for p in curves))

    def _curves(self, job: Job, part: slice, step: int) -> Array:
        import torch  # noqa: PLC0415

        finish, labels = job.inputs[job.image[part]], torch.from_numpy(job.label[part])[:, None]
        now = self.blurred(torch.from_numpy(finish)).numpy()
        flat, end = now.reshape(len(now), 3, -1), finish.reshape(len(finish), 3, -1)
        order = np.flip(np.argsort(job.maps[part].reshape(len(now), -1), axis=1), axis=-1)
        found = []
        for place in range(0, job.pixels + step, step):
            scores = torch.softmax(self.network(torch.from_numpy(now)), dim=1)
            found.append(scores.gather(1, labels)[:, 0].numpy())
            coordinates = order[:, None, place : place + step]
            np.put_along_axis(flat, coordinates, np.take_along_axis(end, coordinates, axis=2), axis=2)
        return np.stack(found, axis=1)


class Given:
    """What torchcam takes for an extractor: maps that are there already."""

    def __init__(self, model: Any, maps: Any) -> None:
        self.model, self.maps = model, maps

    def __call__(self, *_: Any, **__: Any) -> list[Any]:
        return [self.maps]

    def fuse_cams(self, cams: list[Any]) -> Any:
        """The one there is."""
        return cams[0]

    @contextmanager
    def _hooks_off(self) -> Iterator[None]:
        yield


class Torchcam:
    """Its DeletionInsertionMetric over all curves at once: insertion and deletion, their mean over the images."""

    packages = ("torchcam", "torch", "numpy")

    def __init__(self, folder: Path) -> None:
        self.network = network.in_torch(folder)

    def run(self, job: Job, points: int, batch: int) -> Answer:
        """Its step is rounded up, so that there are no more than `points`."""
        import torch  # noqa: PLC0415
        from torchcam.metrics import DeletionInsertionMetric  # noqa: PLC0415

        given = Given(self.network, torch.from_numpy(job.maps))
        metric = DeletionInsertionMetric(given, lambda scores: torch.softmax(scores, -1), steps=points,
                                         batch_size=batch)  # fmt: skip
        with torch.inference_mode():
            metric.update(torch.from_numpy(job.inputs[job.image]), job.label.tolist())
        steps = -(-job.pixels // -(-job.pixels // points))
        return Answer([metric.summary()["insertion_auc"]], len(job.image) * (2 * (steps - 1) + 2))


class Quantus:
    """Its PixelFlipping with the maps turned round: the least important go first, which is insertion backwards.

    It flips values of channels, not pixels, and wants a step that divides the pixels; every third point has whole ones.
    Maps that are negative throughout it refuses, so these are turned round at their largest value.
    """

    packages = ("quantus", "torch", "numpy")

    def __init__(self, folder: Path) -> None:
        self.network = network.in_torch(folder)

    def run(self, job: Job, points: int, batch: int) -> Answer:
        """`points` must be three times a divisor of the pixels."""
        import quantus  # noqa: PLC0415

        metric = quantus.PixelFlipping(features_in_step=3 * job.pixels // points, normalise=False, perturb_baseline=0.0,
                                       disable_warnings=True)  # fmt: skip
        turned = job.maps.max() - job.maps.astype(np.float64)  # in float32 small differences would be lost
        flipped = metric(self.network, job.inputs[job.image], job.label, turned[:, None], softmax=True,
                         device="cpu", batch_size=batch)  # fmt: skip
        curves = np.asarray(flipped)[:, ::-1]
        return Answer(equal_steps(curves).tolist(), curves.size, {"curves": curves[:, ::3].tolist()})


class Xplique:
    """Its Insertion on a Keras copy of the network, softmax inside, so that it is traced once."""

    packages = ("xplique", "tensorflow-cpu", "keras", "numpy")

    def __init__(self, folder: Path) -> None:
        self.network = network.in_keras(folder)

    def run(self, job: Job, points: int, batch: int) -> Answer:
        """The area under the mean curve."""
        from xplique.metrics import Insertion  # noqa: PLC0415

        images = np.ascontiguousarray(job.inputs.transpose(0, 2, 3, 1)[job.image])
        targets = np.eye(self.network.output_shape[-1], dtype=np.float32)[job.label]
        metric = Insertion(self.network, images, targets, batch_size=batch, steps=points)
        return Answer([float(metric(job.maps))], len(job.image) * (points + 1))


class Openvino:
    """OpenVINO-XAI's InsertionDeletionAUC on the ONNX file, one image at a time; insertion and deletion."""

    packages = ("openvino-xai", "openvino", "numpy")
    hints: dict[str, str] = {}  # noqa: RUF012 - nothing but the runtime's own choice of precision

    def __init__(self, folder: Path) -> None:
        import openvino  # noqa: PLC0415
        from openvino_xai.metrics import InsertionDeletionAUC  # noqa: PLC0415

        card, core = json.loads((folder / "card.json").read_text()), openvino.Core()
        mean, std = (np.array(card[name], np.float32) for name in ("mean", "std"))
        order = slice(None, None, -1) if card["channels"] == "BGR" else slice(None)

        def preprocess(picture: Array) -> Array:
            scaled = (picture[..., order].astype(np.float32) * np.float32(card["scale"]) - mean) / std
            return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])

        model = core.read_model(folder / "model.onnx")
        self.metric = InsertionDeletionAUC(model, preprocess, lambda outputs: softmax(outputs[0]))
        threads = os.environ.get("OMP_NUM_THREADS")
        hints = self.hints | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        if hints:
            self.metric.model_compiled = core.compile_model(model, "CPU", hints)

    def run(self, job: Job, points: int, _batch: int) -> Answer:
        """On pictures that are masked before they are normalised: black."""
        found = [self.metric(scores, label, job.shown[image], points) for image, label, scores in job.curves()]
        return Answer([float(one["insertion"]) for one in found], 2 * len(found) * (points + 1))


class OpenvinoFloat32(Openvino):
    """The same in float32: where the processor has bfloat16, OpenVINO takes it unless told."""

    hints = {"INFERENCE_PRECISION_HINT": "f32"}  # noqa: RUF012 - a constant


class Dianna:
    """DIANNA's model runner on rows that were masked with numpy; it opens the file anew for each batch."""

    packages = ("dianna", "onnxruntime", "numpy")

    def __init__(self, folder: Path) -> None:
        from dianna.utils.onnx_runner import SimpleModelRunner  # noqa: PLC0415

        self.runner = SimpleModelRunner(str(folder / "model.onnx"))

    def run(self, job: Job, points: int, batch: int) -> Answer:
        """Rows of one curve after the other, so that batches are full."""
        counts = np.round(np.linspace(0, job.pixels, points + 1)).astype(np.int64)
        wanted = [(place, count) for place in range(len(job.image)) for count in counts]
        ranks = np.argsort(np.argsort(-job.maps.reshape(len(job.maps), -1), axis=1), axis=1).reshape(job.maps.shape)
        found = []
        for start in range(0, len(wanted), batch):
            places, kept = (np.array(one) for one in zip(*wanted[start : start + batch], strict=True))
            shown = ranks[places][:, None] < kept[:, None, None, None]
            scores = self.runner(np.where(shown, job.inputs[job.image[places]], np.float32(0)))
            found.append(softmax(scores)[np.arange(len(places)), job.label[places]])
        curves = np.concatenate(found).reshape(len(job.image), -1)
        return Answer(np.trapezoid(curves, counts / job.pixels, axis=1).tolist(), curves.size)


PEERS: dict[str, Any] = {
    "auditkit": Auditkit, "paper": Paper, "rise": Rise, "torchcam": Torchcam, "quantus": Quantus, "xplique": Xplique,
    "openvino": Openvino, "openvino-f32": OpenvinoFloat32, "dianna": Dianna,
}  # fmt: skip
BATCHED = ("rise", "torchcam", "quantus", "xplique", "dianna")
