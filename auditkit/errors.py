"""The errors auditkit raises on purpose, each with the exit code it ends a command with."""

import copyreg
import difflib
from collections.abc import Iterable

_LEAST_SIMILARITY = 0.7  # grey and gray have 0.75; gpu and cpu have 0.67


class AuditError(Exception):
    """A sentence for the user: what is wrong, where, and what to do next."""

    exit_code = 4

    def __reduce__(self) -> tuple[object, ...]:
        """What a pickled copy is made of; its message is final, so no __init__ adds to it again."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class BadInput(AuditError):
    """The model, card, image, option or heatmap given cannot be used as it is."""

    exit_code = 2


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say about a name that is not known: the most similar one that is, or else all of them."""
    spelled = {each.lower(): each for each in known}
    word = name.lower()
    similar = difflib.get_close_matches(word, spelled, 1, _LEAST_SIMILARITY)
    similar = similar or [each for each in spelled if word and (each.startswith(word) or word.startswith(each))]
    remedy = f"choose from {', '.join(spelled.values())}." if spelled else "there are none."
    return f"unknown {kind} '{name}'; " + (f"did you mean '{spelled[similar[0]]}'?" if similar else remedy)


class ColourPicture(BadInput):
    """A picture of a heatmap was given in place of its numbers."""


class OtherVersion(BadInput):
    """A file was written by an auditkit whose files this one does not read."""


class NoGradient(BadInput):
    """The model has no gradient that can be used; the method mask works without one."""

    def __init__(self, reason: str, alternative: str = "") -> None:
        super().__init__(f"{reason}. Use mask with --gradient differences, which needs none{alternative}.")
        self.reason = reason


class RuntimeFailure(AuditError):
    """The input was fine, but the machine or the runtime could not do the work."""


class MachineFailure(RuntimeFailure):
    """The machine has no memory, process or room for a file left that auditkit needs; no input is to blame."""


class LoadFailure(RuntimeFailure):
    """The runtime cannot load a graph, whatever it is fed."""


class ModelFailure(RuntimeFailure):
    """The model gave no usable answer for the images that it was fed; it may for others."""


class OutOfMemory(ModelFailure):
    """The runtime asked for more memory than there is; a smaller batch may do."""


class IntegrityFailure(AuditError):
    """What was stored is not what was written, or does not follow from the files that it names."""

    exit_code = 5


class NotChecked(AuditError):
    """Nothing wrong was found, but something could not be checked."""

    exit_code = 3
