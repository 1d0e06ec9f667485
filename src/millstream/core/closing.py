"""Objects that a ``with`` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class ClosesOnExit(ABC):
    """Closes itself at the end of its ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
