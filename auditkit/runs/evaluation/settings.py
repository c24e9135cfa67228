"""Settings of an evaluation, the curves they ask for, and the units that the images are cut into."""

from dataclasses import dataclass, replace
from pathlib import Path

from auditkit.data.ranks import TIES, Ties
from auditkit.errors import BadInput, unknown
from auditkit.metrics import protocols
from auditkit.metrics.curves import Steps
from auditkit.metrics.faithfulness import EPS1, EPS2, default_labels, parse_labels
from auditkit.metrics.statistics import METHODS, Method
from auditkit.model.device import DeviceProfile
from auditkit.recorded_names import path_name
from auditkit.runs.folder.results import Settings

INFILLS = ("gray", "blur", "random")
IMAGE_PREFIX, BLUR_PREFIX = "image:", "blur:"  # followed by a file, or by the blur's sigma in pixels
SALIENCY = ("none", "component", "tuned", "both")
NO_MAP = "no map for this label"
NO_LABEL = "no label of the image is in the label set"
MOST_SIGMA = 1000.0  # pixels: a blur wider than any image is a plain colour
TOLERANCE = 5e-3  # of an area, up to which curves are refined
_FEW_POINTS, _MANY_POINTS = 70, 512  # of a refined curve: typically at the default tolerance, and at most
_USUAL_ROWS, _USUAL_PIXELS = 128, 224 * 224  # of a curve, and of each row; with more, units have fewer images
_USUAL_LABELS = 10  # of an image; with more, likewise

# What the definitions leave open and other tools decide otherwise. A change here changes figures, so results record it.
CONVENTIONS = {
    "blur_borders": "reflected",
    "deletion_area": "mean over 1 to n deleted pixels",
    "saliency_component": "4-connected, bicubic crop",
    "saliency_tuned": "bilinear crop",
    "shorter_side": "rounded down",
    "crop_offset": "rounded half to even",
    "gradient_map": "largest absolute value over channels",
    "chance": "seeded with the pixels",
}


@dataclass(frozen=True)
class Evaluation:
    """Settings that can change a figure. None stands for the protocol's value or, without a protocol, the paper's."""

    labels: str | None = None  # all | topK | f>=p | list; None: all up to 20 classes, else top10
    renormalise: bool | None = None  # probabilities given that the label is one of the image's label set
    protocol: str | None = None  # a key of protocols.PRESETS
    infill: str | tuple[str, ...] | None = None  # of INFILLS, blur:SIGMA or image:FILE; several are measured separately
    steps: Steps | None = None
    range: tuple[float, float] = (0.0, 1.0)  # of the kept fraction, over which areas are taken
    eps1: float | None = None
    eps2: float | None = None
    ties: Ties | None = None
    tie_orders: int = 0  # further orders of tied pixels, to measure how much the order matters
    seed: int = 0
    draws: int = 4  # random infill images per point
    controls: bool = True
    deletion: bool = True
    saliency: str = "component"  # rules of the saliency metric's box
    confidence: float = 0.95
    interval: Method = "expanded"

    def __post_init__(self) -> None:
        if self.labels is not None:
            parse_labels(self.labels)
        for infill in self.infills:
            if infill.startswith(BLUR_PREFIX):
                blur_sigma(infill)
            elif infill not in INFILLS and not infill.startswith(IMAGE_PREFIX) and self.protocol is None:
                forms = (*INFILLS, f"{BLUR_PREFIX}SIGMA", f"{IMAGE_PREFIX}FILE")
                raise BadInput(unknown("infill", infill, forms))
        if len({*self.infills}) < len(self.infill_options):
            names = " and ".join(map(str, self.infill_files.values()))
            raise BadInput(f"two infills are files of the same name ({names}); rename one of them.")
        self._check_choices_and_numbers()
        if isinstance(self.range, str) or len(self.range) != 2:
            raise BadInput(f"range {self.range!r} is not two kept fractions, such as 0.2 and 0.6.")
        if not 0 <= self.range[0] < self.range[1] <= 1:
            raise BadInput(f"range {self.range[0]:g} to {self.range[1]:g} does not lie in 0 to 1, low before high.")

    def _check_choices_and_numbers(self) -> None:
        choices = (
            ("ties", self.ties, (None, *TIES)), ("saliency", self.saliency, SALIENCY),
            ("interval", self.interval, METHODS), ("protocol", self.protocol, (None, *protocols.PRESETS)),
        )  # fmt: skip
        for name, value, allowed in choices:
            if value not in allowed:
                raise BadInput(unknown(name, str(value), filter(None, allowed)))

        shares = (("eps1", self.eps1, 0.0), ("eps2", self.eps2, 0.0), ("confidence", self.confidence, 0.5))
        for name, share, least in shares:
            if share is not None and not least <= share < 1:
                raise BadInput(f"{name} {share} must lie in [{least:g}, 1).")
        numbers = (("seed", self.seed, 0), ("draws", self.draws, 1), ("tie orders", self.tie_orders, 0))
        for name, number, fewest in numbers:
            if number < fewest:
                raise BadInput(f"{name} {number} is less than {fewest}.")

    @property
    def targets_listed_labels(self) -> bool:
        """Whether figures of one label, such as insertion, are about each listed label, not the predicted one.

        A list over which probabilities are renormalised is the model's classes, and has a prediction of its own.
        """
        return self.labels is not None and parse_labels(self.labels).labels is not None and not self.renormalise

    @property
    def infills(self) -> tuple[str, ...]:
        """The infills by name, each once; the name of a file has no folders of an absolute path."""
        return tuple(map(_infill_name, self.infill_options))

    @property
    def infill_files(self) -> dict[str, Path]:
        """The file of each infill `image:FILE`, by its name."""
        files = [infill for infill in self.infill_options if infill.startswith(IMAGE_PREFIX)]
        return {_infill_name(infill): Path(infill_file(infill)) for infill in files}

    @property
    def infill_options(self) -> tuple[str, ...]:
        """The infills with the paths of their files, each once."""
        infills = (self.infill,) if isinstance(self.infill, str) else self.infill or ("gray",)
        return tuple(dict.fromkeys(infills))

    def to_record(self) -> Settings:
        """Resolved settings as results hold them."""
        if self.labels is None or self.renormalise is None or self.steps is None or self.ties is None:
            raise ValueError("the settings are not resolved")
        eps1, eps2 = (None if eps is None else float(eps) for eps in (self.eps1, self.eps2))
        return Settings(
            self.labels, self.renormalise, self.protocol, self.infills, str(self.steps),
            (float(self.range[0]), float(self.range[1])), eps1, eps2, self.ties, self.tie_orders, self.seed, self.draws,
            self.controls, self.deletion, self.saliency, float(self.confidence), self.interval, CONVENTIONS,
        )  # fmt: skip


def infill_file(infill: str) -> str:
    """The file of an infill `image:FILE`."""
    return infill.removeprefix(IMAGE_PREFIX)


def _infill_name(infill: str) -> str:
    """An infill as rows and records name it."""
    if not infill.startswith(IMAGE_PREFIX):
        return infill
    return f"{IMAGE_PREFIX}{path_name(Path(infill_file(infill)))}"


def resolved(settings: Evaluation, classes: int) -> Evaluation:
    """The settings with each None filled in; a protocol fixes all but the labels and the number of steps."""
    labels = None if settings.labels is None else str(parse_labels(settings.labels))  # however they are written
    if settings.protocol is None:
        return replace(
            settings, labels=labels or str(default_labels(classes)), renormalise=bool(settings.renormalise),
            infill=settings.infill_options, ties=settings.ties or "random",
            steps=settings.steps or Steps("auto", tolerance=TOLERANCE),
            eps1=EPS1 if settings.eps1 is None else settings.eps1,
            eps2=EPS2 if settings.eps2 is None else settings.eps2,
        )  # fmt: skip
    protocol = protocols.preset(settings.protocol)
    _check_protocol(settings, protocol)
    count = protocol.insertion.steps
    return replace(
        settings, labels=labels or {"all": "all", "predicted": "top1"}[protocol.labels],
        renormalise=protocol.renormalise, infill=(protocol.insertion.infill,), ties=protocol.insertion.ties,
        steps=settings.steps or (Steps("exact") if count is None else Steps("uniform", count=count)),
        eps1=protocol.eps1, eps2=protocol.eps2,
    )  # fmt: skip


def _check_protocol(settings: Evaluation, protocol: protocols.Preset) -> None:
    """Refuse settings that contradict the protocol."""
    fixed = {
        "infill": settings.infill, "ties": settings.ties, "eps1": settings.eps1, "eps2": settings.eps2,
        "rule to renormalise or not": settings.renormalise,
    }  # fmt: skip
    changed, about = [name for name, value in fixed.items() if value is not None], f"the protocol {settings.protocol}"
    if changed:
        raise BadInput(f"{about} has its own {changed[0]}; leave one of the two out.")
    if tuple(settings.range) != (0.0, 1.0) or settings.tie_orders:
        raise BadInput(f"{about} takes whole curves and one order; leave the range and tie orders out.")
    exact = protocol.insertion.steps is None
    rule, takes = ("exact", "every pixel count") if exact else ("uniform", "a number of steps")
    if settings.steps is not None and settings.steps.rule != rule:
        raise BadInput(f"{about} takes {takes}, not '{settings.steps}'; leave the steps out.")
    if protocol.labels == "listed" and settings.labels is None:
        raise BadInput(f"{about} needs the labels to renormalise over; give them as 3,7 or top2.")


@dataclass(frozen=True)
class CurveRule:
    """How one kind of curve is measured."""

    infill: str
    ties: Ties
    steps: Steps
    deletion: bool = False
    protocol: protocols.Curve | None = None  # its counts and its area replace those of the steps


@dataclass(frozen=True)
class CurvePair:
    """The insertion curve and, unless it is left out, the deletion curve of every map; one pair for each infill."""

    insertion: CurveRule
    deletion: CurveRule | None


def curve_pairs(settings: Evaluation) -> tuple[CurvePair, ...]:
    """The curves that resolved settings ask for."""
    steps, ties = settings.steps, settings.ties
    if steps is None or ties is None:
        raise ValueError("the settings are not resolved")
    if settings.protocol is None:
        rules = [CurveRule(infill, ties, steps) for infill in settings.infills]
        pairs = [(rule, replace(rule, deletion=True)) for rule in rules]
    else:
        protocol = protocols.preset(settings.protocol)
        if steps.rule == "uniform":
            protocol = protocol.with_steps(steps.count)
        first, second = protocol.insertion, protocol.deletion
        insertion = CurveRule(first.infill, first.ties, steps, protocol=first)
        pairs = [(insertion, CurveRule(second.infill, second.ties, steps, deletion=True, protocol=second))]
    return tuple(CurvePair(insertion, deletion if settings.deletion else None) for insertion, deletion in pairs)


def blur_sigma(name: str) -> float:
    """The width of an infill `blur:SIGMA`, in pixels of the model's input."""
    try:
        sigma = float(name.removeprefix(BLUR_PREFIX))
    except ValueError:
        sigma = 0.0
    if not 0 < sigma <= MOST_SIGMA:
        raise BadInput(f"infill '{name}' needs a width above 0 and up to {MOST_SIGMA:g} pixels, such as blur:5.")
    return sigma


def units(images: range, pixels: int, classes: int, device: DeviceProfile, settings: Evaluation) -> list[range]:
    """Positions of the images of each unit, sized so that at most two minutes are lost when a run is cut short.

    A unit has at least one image, which a slow model may take longer for. It depends on the plan alone and not on
    speed, so that a resumed run has the same units. A GPU is fast and waits for the first unit, so its first ones are
    small: four of two images, four of four, ...; its last ones are small too, so that two that run together end
    together.
    """
    usual = device.slow_unit_images if pixels > device.slow_pixels else device.unit_images
    usual_rows = max(_USUAL_ROWS * _USUAL_PIXELS // pixels, 1)
    most = max(1, usual * usual_rows // max(_curve_rows(settings, pixels, classes), usual_rows))
    ranges, start = list[range](), images.start
    while start < images.stop:
        size = most
        if device.small_units is not None:
            size = min(2 ** (1 + len(ranges) // 4), most, max(device.small_units, (images.stop - start) // 4))
        ranges.append(range(start, min(start + size, images.stop)))
        start += size
    return ranges


def _curve_rows(settings: Evaluation, pixels: int, classes: int) -> int:
    """Masked images for one map of every usual label, roughly."""
    if settings.steps is None or settings.labels is None:
        raise ValueError("the settings are not resolved")
    pictures = sum(settings.draws if infill == "random" else 1 for infill in settings.infills)
    rule = parse_labels(settings.labels)
    floor_labels = classes if rule.floor is None else int(1 / rule.floor)  # this many can reach it
    labels = min(rule.top or len(rule.labels or ()) or floor_labels, classes)
    return usual_points(settings.steps, pixels) * pictures * (1 + settings.tie_orders) * -(-labels // _USUAL_LABELS)


def usual_points(steps: Steps, pixels: int) -> int:
    """Points of a curve, roughly where they are not fixed."""
    refined = _MANY_POINTS if steps.tolerance < TOLERANCE else _FEW_POINTS
    return min({"exact": pixels, "uniform": steps.count, "auto": refined}[steps.rule], pixels)
