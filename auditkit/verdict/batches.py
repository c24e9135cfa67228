"""An audit that takes images batch by batch, such as until they decide.

The tests of a verdict keep their error whenever one looks (metrics/betting.py), so looking after every batch is sound.
The order of the images follows from the audit's salt and their content, so nobody picks them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

from auditkit.data.dataset import Dataset
from auditkit.runs.folder.figures import Batch, Taken, Taking
from auditkit.runs.folder.results import Results
from auditkit.runs.summary.samples import Samples
from auditkit.verdict.decision import judge
from auditkit.verdict.policy import Policy


@dataclass(frozen=True)
class Batches:
    """The images of an audit in the order in which they are taken."""

    every_image: Dataset
    policy: Policy
    seed: int
    taking: Taking

    def __iter__(self) -> Iterator[Dataset]:
        """All images that have been taken after each batch."""
        order, images = self.every_image.order(self.seed), self.every_image
        return (images.select(order[:end]) for end in self.taking.ends(self.policy.images_needed, len(order)))

    def taken(self, earlier: tuple[Batch, ...]) -> Taken:
        """The entry of results.json."""
        return Taken(len(self.every_image), self.every_image.digest(), earlier, self.taking)


def is_open(policy: Policy, results: Results, samples: Samples | None, day: date, fail_on: str | None) -> bool:
    """Whether a check that counts is open.

    Randomisation has its own number of images and is left to the end.
    """
    checks = tuple(check for check in policy.checks if check.metric != "randomisation")
    judged = judge(replace(policy, checks=checks), results, samples, day, fail_on)
    counted = [check.status for check in judged.checks if check.counts]
    return judged.verdict == "inconclusive" or "inconclusive" in counted
