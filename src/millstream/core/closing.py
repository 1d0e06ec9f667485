"""Objects that a ``with`` block closes."""

from __future__ import annotations

from typing import Self


class ClosesOnExit:
    """Closes itself at the end of its ``with`` block."""

    def close(self) -> None:
        """Close it. Closing again does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
