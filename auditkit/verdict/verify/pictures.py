"""Draws the pictures of a gallery again and compares them with those of the run."""

import io

import numpy as np
from PIL import Image

from auditkit.report.load_run import load
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.pictures.gallery import encoded, pictures
from auditkit.verdict.audit import GALLERY
from auditkit.verdict.verify.run_record import Outcome, RecordedRun

# Between versions of Pillow: how far a colour may be off, on average and at most, where bytes are not equal.
_MEAN_OFF, _MOST_OFF = 1.0, 32
_PLAIN = {"jfif", "jfif_version", "jfif_unit", "jfif_density"}  # facts in a picture that change nothing to be seen


def check_pictures(recorded: RecordedRun, plan: EvaluationPlan) -> Outcome:
    """Whether the gallery's pictures show the images and maps that they name."""
    folder, gallery, problems, count = recorded.store.folder, load(recorded.store.folder).gallery, list[str](), 0
    if gallery is None:
        return Outcome("there are none")
    for name, picture in pictures(plan.model, plan.images, plan.bundles, plan.settings, gallery):
        count += 1
        content, expected = (folder / GALLERY / name).read_bytes(), encoded(name, picture)
        if content != expected and not _alike(content, expected):
            problems.append(f"{GALLERY}/{name} is not the picture that the images and maps give")
    return Outcome(f"{count} pictures of the gallery come out again", problems)


def _alike(content: bytes, expected: bytes) -> bool:
    """Whether two pictures look the same; one that is turned, animated or coloured by its file's facts does not."""
    with Image.open(io.BytesIO(content)) as picture, Image.open(io.BytesIO(expected)) as other:
        facts = (picture.format, picture.size, getattr(picture, "n_frames", 1))
        if facts != (other.format, other.size, 1) or set(picture.info) - _PLAIN:
            return False
        off = np.abs(np.asarray(picture.convert("RGB"), np.float64) - np.asarray(other.convert("RGB"), np.float64))
    return bool(off.mean() <= _MEAN_OFF and off.max() <= _MOST_OFF)
