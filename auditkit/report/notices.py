"""What a reader must know before the first figure, in every form of a report."""

from typing import NamedTuple

from auditkit.runs.folder.results import CardOrigin, Results

FINISH_IT = "If it was stopped, run its command again to finish it."


class Notice(NamedTuple):
    """A heading of a few words, and a sentence or two with the way out."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}. {self.text}"


def notices(results: Results) -> list[Notice]:
    """The notices about a run."""
    about_input = about_preprocessing(results.subject.card_origin)
    shortened = results.run.shortened
    left_out = [] if shortened is None else [Notice("Shortened", shortened.text)]
    return [*_unfinished(results), *about_input, *left_out]


def _unfinished(results: Results) -> list[Notice]:
    preliminary = results.run.preliminary
    return [] if preliminary is None else [Notice("Preliminary", f"{preliminary.text} {FINISH_IT}")]


def about_preprocessing(origin: CardOrigin) -> list[Notice]:
    """That the preprocessing is a guess; nothing where somebody stated it."""
    return [Notice("Assumed preprocessing", str(origin.assumption))] if origin.assumption else []
