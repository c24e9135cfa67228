"""One half of the images proposes what the model may rely on, and the other half confirms it or does not.

A cue of all images is confirmed by the donors of the other half: how often their part carries their label along. A cue
of one label may be rare, and where the object agrees with it, removing it changes nothing. It is therefore added: the
part of one proposing image is put into every confirming image of another label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.betting import DECISIVE, e_above
from auditkit.metrics.exchanges import CONTROL
from auditkit.runs.examination.material import Predict
from auditkit.runs.examination.rates import Outcome

# By how much more the prediction must follow the donor than by chance and by the share of the image that is exchanged:
# where objects fill the images, a part that is most of an image carries its label without being a cue.
MARGIN = 0.25
ADDED_MARGIN = 0.5  # the same for a part that is added to other images: it is the best of several
CARRIES = 0.75  # of its partners: an image whose part carries its label to so many has the cue
FEWEST_CARRIERS = 2  # images of a label that propose a cue together
EXPLAINS = 0.8  # an exchange that carries along so much of what the widest does explains it
MOST_PROPOSALS = 8
# However broad a part is, so much is reliance: of models that rely on objects, the surroundings carried 0.62 at most.
MOST_LIMIT = 0.75  # or, where a label comes by chance more often than in 50 %, half way from chance to 1
MOST_LIMIT_OF_LABEL = 0.9  # the same for a cue of one label


@dataclass(frozen=True)
class Proposal:
    """An exchange that may carry labels along: of all images, or of those with one label."""

    outcome: Outcome
    label: int | None
    gain: float  # in the proposing half: the rate over chance, or the share of a label's images that carry it
    donor: int | None = None  # whose part is added to other images, where it is about one label

    def chance(self, half: Array) -> float:
        """How often a donor's label is predicted after exchanges between images of other labels, in one half."""
        if self.label is None:
            return self.outcome.mean_chance(half)
        return float(self.outcome.chances(np.array([self.label]), half)[0])

    def limit(self, half: Array) -> float:
        """What the rate has to exceed."""
        margin = MARGIN if self.donor is None else ADDED_MARGIN
        most, chance = MOST_LIMIT if self.label is None else MOST_LIMIT_OF_LABEL, self.chance(half)
        return min(chance + self.outcome.exchange.breadth + margin, max(most, (1 + chance) / 2))


@dataclass(frozen=True)
class Tested:
    """A proposal, and how often the prediction follows on the confirming images."""

    proposal: Proposal
    values: Array  # by donor, or by recipient of the part that is added
    recipients: Array  # of the part that is added, in the order of the values; empty for a cue of all images

    @cached_property
    def chance(self) -> float:
        """In the confirming half: a proposal may owe its strength to a low chance in the other."""
        return self.proposal.chance(~self.proposal.outcome.material.proposes)

    @cached_property
    def limit(self) -> float:
        """What the rate of the confirming half has to exceed."""
        return self.proposal.limit(~self.proposal.outcome.material.proposes)

    def confirms(self, tests: int) -> bool:
        """Whether the rate exceeds the limit, with the error divided among that many tests."""
        return len(self.values) > 0 and e_above(self.values, 0.0, self.limit) >= DECISIVE * tests


def proposals(outcomes: Sequence[Outcome]) -> list[Proposal]:
    """What the proposing half suggests: a cue of all images, or else cues of single labels."""
    usable = [outcome for outcome in outcomes if outcome.exchange.kind != CONTROL]
    half = usable[0].material.proposes
    of_all = [_of_all(outcome, half) for outcome in usable]
    strong = [proposal for proposal in of_all if proposal.chance(half) + proposal.gain > proposal.limit(half)]
    if strong:
        return [_narrowest(strong)]
    labels = np.unique(usable[0].material.predicted[half]).tolist()
    candidates = [proposal for label in labels if (proposal := _of_label(usable, int(label), half)) is not None]
    return sorted(candidates, key=lambda proposal: -proposal.gain)[:MOST_PROPOSALS]


def _of_all(outcome: Outcome, half: Array) -> Proposal:
    """A cue of all images, with its gain."""
    values = outcome.by_donor(half)
    return Proposal(outcome, None, float(values.mean()) - outcome.mean_chance(half) if len(values) else 0.0)


def _narrowest(strong: Sequence[Proposal]) -> Proposal:
    """The narrowest exchange that carries along nearly what the strongest does."""
    strongest = max(proposal.gain for proposal in strong)
    explains = [proposal for proposal in strong if proposal.gain >= EXPLAINS * strongest]
    return min(explains, key=lambda proposal: proposal.outcome.exchange.breadth)


def _of_label(outcomes: Sequence[Outcome], label: int, half: Array) -> Proposal | None:
    """A cue that several images of a label share, with the image that shows it best."""
    candidates = []
    for outcome in outcomes:
        donors = np.flatnonzero(half & (outcome.material.predicted == label))
        rates = np.nan_to_num(outcome.rates[donors])
        carries = rates >= max(CARRIES, Proposal(outcome, label, 0.0).limit(half))
        if carries.sum() >= FEWEST_CARRIERS:
            best = int(donors[rates.argmax()])
            candidates.append(Proposal(outcome, label, float(carries.mean()), best))
    return _narrowest(candidates) if candidates else None


def tested(proposal: Proposal, predict: Predict) -> Tested:
    """The proposal on the confirming half."""
    outcome, material = proposal.outcome, proposal.outcome.material
    if proposal.donor is None:
        return Tested(proposal, outcome.by_donor(~material.proposes), np.array([], dtype=np.int64))
    recipients = np.flatnonzero(~material.proposes & (material.predicted != proposal.label))
    donor = material.sides[proposal.donor]
    seen = predict([outcome.exchange.mix(material.sides[index], donor) for index in recipients]).argmax(axis=1)
    return Tested(proposal, (seen == proposal.label).astype(np.float64), recipients)
