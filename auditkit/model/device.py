"""What depends on the device that a model runs on: batch sizes, work in flight, and where masks are composed."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DeviceProfile:
    """How work is divided on one kind of device. Only the speed depends on it, and the units that a run is cut into."""

    name: Literal["cpu", "cuda"]
    provider: str  # the runtime's name for it
    largest_batch: int  # rows: the batch size is not measured beyond this
    first_batch: int | None  # rows of a batch while few images are run and nothing was measured; None: all of them
    pads_batches: bool  # short batches are filled up: CUDA sets up every new size, in 1/6 s for a ResNet-50
    batches_in_flight: int  # on a GPU the next batch runs while one is read back; on a CPU two compete for the cores
    gradient_batch: int  # rows differentiated at once
    masks_in_graph: bool  # a CPU composes masked images faster outside the graph (see masks.Composer)
    casts_to_float16: bool  # a first cast to float16 is run on every image; the CPU's runtime removes it
    relu_gates: bool  # gates of a gradient stay Where nodes; a CPU multiplies faster (see graph.simplify)
    units_at_once: int  # units of a run whose rows are on the device: one's pauses are the other's turn
    unit_images: int  # lost at most when a run is cut, and prepared before its first pass
    slow_unit_images: int  # of units whose images have more than `slow_pixels`
    slow_pixels: float  # a unit of larger images takes minutes on a CPU
    small_units: int | None  # images of the first and last units: a GPU waits for the first, two should end together
    sample_images: int  # run twice, and on the CPU, to see what the runtime is worth
    learning_factor: int  # times the images whose masks are learned together: 2,560 rows a step fill a GPU
    learning_rows: int  # images in a step of learning masks
    learning_pixels: int  # the backward pass keeps some 90 MB for each image of 224 pixels in a ResNet-50


CPU = DeviceProfile(
    name="cpu", provider="CPUExecutionProvider",
    largest_batch=64, first_batch=None, pads_batches=False, batches_in_flight=1, gradient_batch=16,
    masks_in_graph=False, casts_to_float16=False, relu_gates=False,
    units_at_once=1, unit_images=16, slow_unit_images=2, slow_pixels=96 * 96, small_units=None,
    sample_images=1, learning_factor=1, learning_rows=160, learning_pixels=20 * 224 * 224,
)  # fmt: skip
CUDA = DeviceProfile(
    name="cuda", provider="CUDAExecutionProvider",
    largest_batch=512, first_batch=16, pads_batches=True, batches_in_flight=2, gradient_batch=64,
    masks_in_graph=True, casts_to_float16=True, relu_gates=True,
    units_at_once=2, unit_images=16, slow_unit_images=16, slow_pixels=float("inf"), small_units=4,
    sample_images=4, learning_factor=32, learning_rows=1280, learning_pixels=640 * 224 * 224,
)  # fmt: skip
PROFILES: dict[str, DeviceProfile] = {profile.name: profile for profile in (CPU, CUDA)}
