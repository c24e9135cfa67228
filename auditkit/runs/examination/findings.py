"""Names the cue behind confirmed proposals, and shows it."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image
from scipy import ndimage

from auditkit.arrays import Array
from auditkit.data.atomic_write import write_whole
from auditkit.data.dataset import Members
from auditkit.metrics.betting import Sample
from auditkit.metrics.exchanges import CORNERS, Exchange, Side
from auditkit.runs.examination.places import ALL_CORNERS, BORDER, centre, place, zone
from auditkit.runs.examination.proposals import CARRIES, Proposal, Tested
from auditkit.runs.folder.examination import Carried, CueKind, Example, Finding
from auditkit.runs.folder.figures import Severity
from auditkit.runs.pictures.heatmap_panels import in_colour

_EXAMPLES = 4  # pictures of a finding
_SIDE = 128  # pixels of a picture's side
_GAP = 4
_FRAME = (((255, 255, 255), 3), ((214, 0, 84), 2))  # colours and widths in pixels, the inner one last
_HIGH = 0.6  # a prediction that follows so often depends on the cue alone


def findings(tests: Sequence[Tested], out: Path, members: Members | None = None) -> tuple[Finding, ...]:
    """What the confirming images confirm; `members` are the images of each group."""
    confirmed = [tested for tested in tests if tested.confirms(len(tests))]
    return tuple(_finding(tested, number, out, members) for number, tested in enumerate(confirmed, start=1))


def _finding(tested: Tested, number: int, out: Path, members: Members | None) -> Finding:
    proposal, rate = tested.proposal, float(tested.values.mean())
    low, high = Sample(tested.values, (0.0, 1.0)).interval or (None, None)
    carriers = _carriers(proposal)
    where = _place(proposal, carriers)
    exchange = proposal.outcome.exchange
    kind = "corner" if exchange.kind == "mark" and "corner" in where else exchange.kind
    severity: Severity = "high" if rate - tested.chance >= _HIGH else "medium"
    return Finding(
        cast(CueKind, kind), exchange.name, where, proposal.label, rate, low, high, tested.chance, tested.limit,
        len(tested.values), len(carriers), severity, _examples(tested, number, out),
        groups=None if members is None else _by_group(proposal, carriers, members),
    )  # fmt: skip


def _carriers(proposal: Proposal) -> list[int]:
    """The images whose part carries their label to others."""
    return list(np.flatnonzero(_of_label(proposal) & (proposal.outcome.rates >= CARRIES)).tolist())


def _of_label(proposal: Proposal) -> Array:
    """Which images could carry it: those of its label, or all."""
    predicted = proposal.outcome.material.predicted
    return np.asarray(predicted == (predicted if proposal.label is None else proposal.label))


def _by_group(proposal: Proposal, carriers: Sequence[int], members: Members) -> dict[str, dict[str, Carried]]:
    """How many images of each group carry it."""
    ids = np.array(proposal.outcome.material.ids, object)
    carrying, possible = set(ids[list(carriers)]), set(ids[_of_label(proposal)])
    return {column: {group: Carried(len(carrying & set(images)), len(possible & set(images)))
                     for group, images in groups.items()} for column, groups in members.items()}  # fmt: skip


def _place(proposal: Proposal, carriers: Sequence[int]) -> str:
    """Where the cue lies, in words; empty where it is everywhere."""
    exchange, material = proposal.outcome.exchange, proposal.outcome.material
    if exchange.kind == "mark":
        size, shape = exchange.name.partition(" ")[0], material.pixels.shape[1:3]
        return place([centre(material.sides[image].windows[size], shape) for image in carriers])
    if exchange.kind == "place":
        middle = int(exchange.name.split()[2]) / 100
        return zone(middle, 0.5) if exchange.name.endswith("down") else zone(0.5, middle)
    if exchange.name in CORNERS:
        return f"the {exchange.name}"
    return {"border": BORDER, "corner": ALL_CORNERS}.get(exchange.kind, "")


def _examples(tested: Tested, number: int, out: Path) -> tuple[Example, ...]:
    """Exchanges with confirming images after which the prediction is the donor's."""
    proposal, material = tested.proposal, tested.proposal.outcome.material
    examples = list[Example]()
    for recipient, donor in _followed(tested)[:_EXAMPLES]:
        exchange, sides = proposal.outcome.exchange, (material.sides[recipient], material.sides[donor])
        pictures = [material.pixels[recipient], material.pixels[donor], exchange.mix(*sides)]
        name = f"finding-{number}-{len(examples) + 1}.png"
        write_whole(out / name, _strip(pictures, _part(exchange, *sides)), root=out.parent)
        before, after = (int(material.predicted[index]) for index in (recipient, donor))
        examples.append(Example(material.ids[recipient], material.ids[donor], before, after, name))
    return tuple(examples)


def _followed(tested: Tested) -> list[tuple[int, int]]:
    """Recipient and donor where the prediction follows; one for each donor of a cue of all images."""
    proposal, material = tested.proposal, tested.proposal.outcome.material
    if proposal.donor is not None:
        return [(int(recipient), proposal.donor) for recipient in tested.recipients[tested.values > 0]]
    confirming = ~material.proposes[material.pairs[:, 1]] & proposal.outcome.follows
    by_donor = {donor: (recipient, donor) for recipient, donor in material.pairs[confirming].tolist()}
    return list(by_donor.values())


def _part(exchange: Exchange, recipient: Side, donor: Side) -> Array:
    """Which pixels come from the donor; none where the exchange has no place."""
    blank, full = (np.full_like(recipient.pixels, value) for value in (0, 1))
    chosen = exchange.mix(replace(recipient, pixels=blank), replace(donor, pixels=full)).any(axis=-1)
    return np.zeros_like(chosen) if chosen.all() else np.asarray(chosen)


def _strip(pictures: Sequence[Array], part: Array) -> bytes:
    """Recipient, donor and the exchange side by side, as a PNG; the part is framed in the last two."""
    strip = Image.new("RGB", (len(pictures) * (_SIDE + _GAP) - _GAP, _SIDE), "white")
    for position, pixels in enumerate(pictures):
        picture = np.array(_enlarged(in_colour(pixels)))
        if position:
            inside = np.asarray(_enlarged(part.astype(np.uint8)), np.bool_)
            for colour, width in _FRAME:
                picture[ndimage.binary_dilation(inside, iterations=width) & ~inside] = colour
        strip.paste(Image.fromarray(picture), (position * (_SIDE + _GAP), 0))
    stream = io.BytesIO()
    strip.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _enlarged(pixels: Array) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels)).resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
