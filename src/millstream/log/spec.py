"""The definition of a log, shared by those who write and those who read it."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from millstream.log.errors import LogInputError, SystemLogError
from millstream.log.kinds import KINDS, SYSTEM, SYSTEM_KINDS, Kind, SystemKind, is_system

Compression = Literal["auto", "plain", "lz4", "zstd"]

_LONGEST_LINGER = 60.0
_NAME = re.compile(r"[A-Za-z0-9_%][A-Za-z0-9._%-]{0,199}")


class LogSpec(msgspec.Struct, frozen=True):
    """The name of a log, and how its writer cuts blocks.

    ``name`` is 1 to 200 letters, digits, and ``. _ % -``; ``kind`` says what the log is for, which the store keeps when
    the log is made. System logs (:func:`system_log`) have names that begin with ``system:``; without the kind such a
    log can be read alone. A block is cut at ``block_bytes`` bytes or
    ``block_messages`` messages, whichever comes first; ``compression`` is tried on every column of a block and kept
    where it pays: ``zstd`` writes half the bytes of ``lz4``, at the same speed where values are small (about 100 bytes)
    and at two thirds of it where they are large (1,000 bytes); ``auto`` takes ``lz4`` for columns of large values and
    ``zstd`` for all others.
    A writer waits ``linger`` seconds for company before it commits less than a block, and makes at most
    ``commit_rate`` commits and ``message_rate`` messages a second; 0 is no wait and no limit.
    Only the name must be the same everywhere: every reader understands every block.
    """

    name: str
    compression: Compression = "auto"
    block_bytes: int = 1 << 20
    block_messages: int = 65_536
    linger: float = 0.0
    commit_rate: float = 0.0
    message_rate: float = 0.0
    kind: Kind = "application"

    def __post_init__(self) -> None:
        if not is_log_name(self.name):
            raise LogInputError(
                f"invalid log name {self.name[:80]!r}: use 1 to 200 letters, digits, '.', '_', '%' and "
                "'-', and begin with a letter, a digit, '_' or '%'"
            )
        if self.kind not in KINDS:
            raise LogInputError(f"unknown kind {str(self.kind)[:40]!r} of log {self.name!r}: use {', '.join(KINDS)}")
        if self.kind in SYSTEM_KINDS and not is_system(self.name):
            raise LogInputError(
                f"invalid name {self.name!r} for a log of kind {self.kind!r}: use the name that system_log() returns"
            )
        if not 1 <= self.block_messages <= 65_536:
            raise LogInputError(f"block_messages of log {self.name!r} must be 1 to 65,536, not {self.block_messages:,}")
        if not 1 <= self.block_bytes <= 64 << 20:
            raise LogInputError(
                f"block_bytes of log {self.name!r} must be 1 byte to 64 MiB, not {self.block_bytes:,} bytes"
            )
        if not 0 <= self.linger <= _LONGEST_LINGER:
            raise LogInputError(f"linger of log {self.name!r} must be 0 to 60 seconds, not {self.linger}")
        for name, rate in (("commit_rate", self.commit_rate), ("message_rate", self.message_rate)):
            if not (rate == 0 or 0.01 <= rate <= 1e9):
                raise LogInputError(
                    f"{name} of log {self.name!r} must be 0 (off) or 0.01 to 1,000,000,000 per second, not {rate}"
                )


def is_log_name(name: str) -> bool:
    """Whether a log can have the name *name*."""
    return _NAME.fullmatch(name.removeprefix(SYSTEM)) is not None


def system_log(name: str, kind: SystemKind) -> LogSpec:
    """The definition of the system log ``system:`` and *name*, of this *kind*, for the one who keeps it."""
    return LogSpec(SYSTEM + name, kind=kind)


def require_owner(spec: LogSpec, done: str) -> None:
    """Raise :class:`SystemLogError` where *spec* is of a system log and does not name its kind: it cannot be *done*."""
    if is_system(spec.name) and spec.kind not in SYSTEM_KINDS:
        raise SystemLogError(
            f"{spec.name!r} is a system log: it can be read, but not {done}. Names that begin with "
            f"{SYSTEM!r} are reserved: use another log"
        )


def user_log(name: str) -> LogSpec:
    """The definition of the log *name*, to be made or written by users. Raises :class:`SystemLogError`."""
    spec = LogSpec(name)
    require_owner(spec, "written")
    return spec


def require_name(what: str, name: str, *, least: int = 1) -> None:
    """Raise :class:`LogInputError` where *name* cannot be that of *what*, a consumer or a producer: stores keep text of
    *least* to 255 characters.
    """
    if not least <= len(name) <= 255 or any("\ud800" <= character <= "\udfff" for character in name):
        raise LogInputError(f"invalid {what} name {name[:80]!r}: use {least} to 255 characters of Unicode text")
