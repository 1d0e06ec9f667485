"""The root of every error that Millstream raises on purpose.

Each package derives one root of its own from :class:`MillstreamError` (``LogError``, ``StoreError`` …). The docstring
of an error class is its default message; a message says what is wrong, where, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class MillstreamError(Exception):
    """Millstream could not do what was asked."""

    transient: ClassVar[bool] = False
    """True where the same call may succeed later without anyone changing anything."""

    permanent: ClassVar[bool] = False
    """True where the same call never succeeds, whatever changes around it."""

    exit_code: ClassVar[int] = 1
    """The process exit code that the command line gives this error (see ``docs/reference/exit-codes.md``)."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InputError(MillstreamError):
    """The input cannot be used as it is."""

    exit_code: ClassVar[int] = 2


class BusyError(MillstreamError):
    """Another process holds the resource."""

    transient: ClassVar[bool] = True
    exit_code: ClassVar[int] = 4


class NotFoundError(MillstreamError):
    """The requested object does not exist."""

    exit_code: ClassVar[int] = 3
