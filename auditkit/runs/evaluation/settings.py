"""What an evaluation is to do: its settings, the curves they ask for, and the units the work is cut into."""

from dataclasses import dataclass, replace
from typing import Any

from auditkit.data.ranks import TIES, Ties
from auditkit.errors import BadInput
from auditkit.metrics import protocols
from auditkit.metrics.curves import Steps
from auditkit.metrics.faithfulness import EPS1, EPS2, default_labels, parse_labels
from auditkit.metrics.statistics import METHODS, Method
from auditkit.model.device import DeviceProfile

INFILLS = ("gray", "blur", "random")
GIVEN_IMAGE, GIVEN_BLUR = "image:", "blur:"  # and the picture's file, or the blur's sigma in pixels
CONTROL = "control:"  # and the name of a map that knows nothing of the model
SALIENCY = ("none", "component", "tuned", "both")
NO_MAP = "no map for this label"
NO_LABEL = "no label of the image is in the label set"
MOST_SIGMA = 1000.0


@dataclass(frozen=True)
class Evaluation:
    """Settings that can change a figure; all of them are part of its name. None: the protocol's, or the paper's."""

    labels: str | None = None  # all | topK | f>=p | list; None: all up to 20 classes, else top10
    renormalise: bool | None = None  # probabilities given that the label is one of the image's label set
    protocol: str | None = None  # a key of protocols.PRESETS
    infill: str | tuple[str, ...] | None = None  # of INFILLS, blur:SIGMA, image:FILE; several one by one
    steps: Steps | None = None
    range: tuple[float, float] = (0.0, 1.0)  # of the kept fraction, over which areas are taken
    eps1: float | None = None
    eps2: float | None = None
    ties: Ties | None = None
    tie_orders: int = 0  # more orders of tied pixels to try, for the spread that they make
    seed: int = 0
    draws: int = 4  # of random infill images a point
    controls: bool = True
    deletion: bool = True
    saliency: str = "component"  # rules of the saliency metric's box
    confidence: float = 0.95
    interval: Method = "expanded"

    def __post_init__(self) -> None:
        if self.labels is not None:
            parse_labels(self.labels)
        for infill in self.infills:
            _check_infill(infill, self.protocol)
        for name, eps in (("eps1", self.eps1), ("eps2", self.eps2)):
            if eps is not None and not 0 <= eps < 1:
                raise BadInput(f"{name} {eps} must lie in [0, 1).")
        for name, value, allowed in (
            ("ties", self.ties, (None, *TIES)), ("saliency", self.saliency, SALIENCY),
            ("interval", self.interval, METHODS), ("protocol", self.protocol, (None, *protocols.PRESETS)),
        ):  # fmt: skip
            if value not in allowed:
                raise BadInput(f"{name} '{value}' is not one of {', '.join(filter(None, allowed))}.")
        for name, number, least in (
            ("seed", self.seed, 0),
            ("draws", self.draws, 1),
            ("tie orders", self.tie_orders, 0),
        ):
            if number < least:
                raise BadInput(f"{name} {number} is less than {least}.")
        if not 0.5 <= self.confidence < 1:
            raise BadInput(f"confidence {self.confidence} must lie in [0.5, 1).")
        if isinstance(self.range, str) or len(self.range) != 2:
            raise BadInput(f"range {self.range!r} is not two kept fractions, such as 0.2 and 0.6.")
        if not 0 <= self.range[0] < self.range[1] <= 1:
            raise BadInput(f"range {self.range[0]:g} to {self.range[1]:g} does not lie in 0 to 1, low before high.")

    @property
    def named(self) -> bool:
        """Whether figures of one label, such as insertion, are about each label of a list, not the predicted one.

        A list over which probabilities are renormalised is the model's classes, and has a prediction of its own.
        """
        return self.labels is not None and parse_labels(self.labels).listed is not None and not self.renormalise

    @property
    def infills(self) -> tuple[str, ...]:
        """The infills by name, each once."""
        given = (self.infill,) if isinstance(self.infill, str) else self.infill or ("gray",)
        return tuple(dict.fromkeys(given))

    def to_json(self) -> dict[str, Any]:
        """Plain object for results and digests."""
        return {
            "labels": self.labels, "renormalise": self.renormalise, "protocol": self.protocol,
            "infill": list(self.infills), "steps": str(self.steps), "range": list(self.range), "eps1": self.eps1,
            "eps2": self.eps2, "ties": self.ties, "tie_orders": self.tie_orders, "seed": self.seed,
            "draws": self.draws, "controls": self.controls, "deletion": self.deletion, "saliency": self.saliency,
            "confidence": self.confidence, "interval": self.interval,
        }  # fmt: skip


def resolved(settings: Evaluation, classes: int) -> Evaluation:
    """The settings with each None filled in; a protocol's own rules cannot be changed, but its labels and steps can."""
    if settings.protocol is None:
        return replace(
            settings, labels=_plain(settings.labels) or str(default_labels(classes)), infill=settings.infills,
            renormalise=bool(settings.renormalise), steps=settings.steps or Steps("auto", tolerance=5e-3),
            eps1=EPS1 if settings.eps1 is None else settings.eps1,
            eps2=EPS2 if settings.eps2 is None else settings.eps2, ties=settings.ties or "random",
        )  # fmt: skip
    protocol = _followed(settings, protocols.preset(settings.protocol))
    if settings.steps is None:
        own = protocol.insertion.steps
        settings = replace(settings, steps=Steps("exact") if own is None else Steps("uniform", count=own))
    return replace(
        settings, infill=(protocol.insertion.infill,), ties=protocol.insertion.ties,
        labels=_plain(settings.labels) or {"all": "all", "predicted": "top1"}[protocol.labels],
        renormalise=protocol.renormalise, eps1=protocol.eps1, eps2=protocol.eps2,
    )  # fmt: skip


def _plain(labels: str | None) -> str | None:
    """A label set has one name, however it is written."""
    return None if labels is None else str(parse_labels(labels))


def _followed(settings: Evaluation, protocol: protocols.Preset) -> protocols.Preset:
    """The protocol, if no setting goes against it."""
    fixed = {
        "infill": settings.infill, "ties": settings.ties, "eps1": settings.eps1, "eps2": settings.eps2,
        "rule to renormalise or not": settings.renormalise,
    }  # fmt: skip
    if changed := [name for name, value in fixed.items() if value is not None]:
        raise BadInput(f"the protocol {settings.protocol} has its own {changed[0]}; leave one of the two out.")
    if tuple(settings.range) != (0.0, 1.0) or settings.tie_orders:
        raise BadInput(
            f"the protocol {settings.protocol} takes whole curves and one order; leave the range and tie orders out."
        )
    every = protocol.insertion.steps is None
    rule, takes = ("exact", "every pixel count") if every else ("uniform", "a number of steps")
    if settings.steps is not None and settings.steps.rule != rule:
        raise BadInput(f"the protocol {settings.protocol} takes {takes}, not '{settings.steps}'; leave the steps out.")
    if protocol.labels == "listed" and settings.labels is None:
        raise BadInput(
            f"the protocol {settings.protocol} needs the labels to renormalise over; give them as 3,7 or top2."
        )
    return protocol


@dataclass(frozen=True)
class Rule:
    """How one kind of curve is measured."""

    infill: str
    ties: Ties
    steps: Steps
    deletion: bool = False
    protocol: protocols.Curve | None = None  # its counts and its area, instead of the steps'


@dataclass(frozen=True)
class Lane:
    """An insertion curve and, unless it is left out, a deletion curve of every map; one lane for each infill."""

    insertion: Rule
    deletion: Rule | None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those that there are."""
        return (self.insertion,) if self.deletion is None else (self.insertion, self.deletion)


def lanes(settings: Evaluation) -> tuple[Lane, ...]:
    """What resolved settings ask for."""
    if settings.steps is None or settings.ties is None:
        raise ValueError("the settings are not resolved")
    if settings.protocol is None:
        pairs = [(Rule(name, settings.ties, settings.steps), Rule(name, settings.ties, settings.steps, deletion=True))
                 for name in settings.infills]  # fmt: skip
    else:
        protocol = protocols.preset(settings.protocol)
        if settings.steps.rule == "uniform":
            protocol = protocol.with_steps(settings.steps.count)
        both = ((protocol.insertion, False), (protocol.deletion, True))
        first, second = (Rule(c.infill, c.ties, settings.steps, turned, c) for c, turned in both)
        pairs = [(first, second)]
    return tuple(Lane(first, second if settings.deletion else None) for first, second in pairs)


def _check_infill(name: str, protocol: str | None) -> None:
    if name.startswith(GIVEN_BLUR):
        given_sigma(name)
    elif name not in INFILLS and not name.startswith(GIVEN_IMAGE) and protocol is None:
        more = f"{GIVEN_BLUR}SIGMA or {GIVEN_IMAGE}FILE"
        raise BadInput(f"infill '{name}' is not one of {', '.join(INFILLS)}, {more}.")


def given_sigma(name: str) -> float:
    """The width of an infill `blur:SIGMA`, in pixels of the model's input."""
    try:
        sigma = float(name.removeprefix(GIVEN_BLUR))
    except ValueError:
        sigma = 0.0
    if not 0 < sigma <= MOST_SIGMA:
        raise BadInput(f"infill '{name}' has no width from 0 to {MOST_SIGMA:g} pixels; blur:5 is one.")
    return sigma


def units(images: int, pixels: int, device: DeviceProfile) -> list[range]:
    """Positions of the images of each unit, so that no more than minutes are lost when a run is cut.

    A GPU is fast and waits for the first of them, so it begins with small ones: four of two images, four of four, ...;
    it ends with small ones too, so that two that run together come to their ends together.
    """
    most = device.slow_unit_images if pixels > device.slow_pixels else device.unit_images
    found, start = list[range](), 0
    while start < images:
        size = most
        if device.small_units is not None:
            size = min(2 ** (1 + len(found) // 4), most, max(device.small_units, (images - start) // 4))
        found.append(range(start, min(start + size, images)))
        start += size
    return found
