"""What a reader must know before the first figure, in every form of a report."""

from typing import NamedTuple

from auditkit.model.card import STATE_IT
from auditkit.runs.folder.results import CardOrigin, Results


class Notice(NamedTuple):
    """A heading of a few words, and a sentence or two with the way out."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}. {self.text}"


def notices(results: Results) -> list[Notice]:
    """The notices about a run."""
    return about_preprocessing(results.subject.card_origin)


def about_preprocessing(origin: CardOrigin) -> list[Notice]:
    """That the preprocessing is a guess; nothing where somebody stated it."""
    return [Notice("Assumed preprocessing", f"{origin.assumption} {STATE_IT}")] if origin.assumed else []
