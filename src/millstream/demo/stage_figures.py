"""The figures of a stage of the demo."""

from __future__ import annotations

from typing import Any

import msgspec


class StageMetrics(msgspec.Struct, frozen=True):
    """The figures of one stage.

    ``counts`` are whole numbers by what was counted, the first of them the one that ``rate`` is about; ``bytes`` is
    the content that was read or written; ``facts`` is what later stages and the report need to know. ``earlier`` is
    True where the stage was found done, by an earlier run on the same folder. In ``beside`` of the seconds other stages
    ran too.
    """

    stage: str
    title: str
    seconds: float
    counts: dict[str, int]
    bytes: int = 0
    facts: dict[str, Any] = {}
    earlier: bool = False
    beside: float = 0.0

    @property
    def rate(self) -> float:
        """Pieces a second: the first count over the seconds."""
        first = next(iter(self.counts.values()), 0)
        return first / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """One line for people."""
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        when = "done before" if self.earlier else f"{self.seconds:6.1f} s"
        return f"{when:>11}  {self.title:<44} {counts}"
