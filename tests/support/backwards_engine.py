"""An engine that finishes the last unit first, so that results have to wait; it runs everything in this process."""

from collections.abc import Callable, Iterable
from typing import Any

from auditkit.runs.executor import execute_here


class BackwardsEngine:
    """Runs units from the last to the first."""

    def __init__(self, after_each: Callable[[], None] = lambda: None) -> None:
        """`after_each` is called when a unit has been kept."""
        self.on_unit: Callable[[str, str], None] | None = None
        self._after_each = after_each

    def run(
        self, work: Callable[..., Any], units: Iterable[Any], keep: Callable[[Any, Any], None], tick: Any, at_once: int
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        def keep_and_tell(unit: Any, result: Any) -> None:
            keep(unit, result)
            self._after_each()

        return execute_here(work, list(units)[::-1], keep_and_tell, tick, at_once, 0)

    def on_each_kind(self, _work: Callable[..., Any], _besides: str, _subject: str) -> dict[str, Any]:
        """There is no other kind of device."""
        return {}
