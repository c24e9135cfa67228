"""What gallery.json holds: the chosen images with their figures and the files of their pictures."""

from collections.abc import Mapping
from dataclasses import dataclass

from auditkit.records import optional

FOLDER = "gallery"  # of a run
INDEX = "gallery.json"


@dataclass(frozen=True)
class ThinnedCurve:
    """Some points of an insertion curve."""

    keep: tuple[float, ...]  # kept fractions
    score: tuple[float, ...]


@dataclass(frozen=True)
class LabelMatrix:
    """Areas of log-odds of an image's likeliest labels: a row for each label, a column for each label's map."""

    labels: tuple[int, ...]
    log_odds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Pictures:
    """Files in the gallery's folder."""

    image: str
    map: str
    kept: str


@dataclass(frozen=True)
class GalleryEntry:
    """A map of the gallery."""

    image: str
    label: int
    label_name: str | None
    bundle: str
    role: str
    predicted: bool
    truth: int | None
    prob: float | None
    insertion: float | None
    alpha: float | None
    beta: float | None
    worst_completeness: float | None
    worst_soundness: float | None
    pictures: Pictures
    curve: ThinnedCurve
    matrix: LabelMatrix | None = optional()  # of the image, in its first entry


@dataclass(frozen=True)
class GalleryIndex:
    """The whole file."""

    schema_version: int
    kept: float  # share of the pixels
    entries: tuple[GalleryEntry, ...]
    chosen_by: Mapping[str, str] | None = optional()  # the metric that ordered the images, by bundle
