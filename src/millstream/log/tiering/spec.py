"""Where sealed objects of a log go, and when."""

from __future__ import annotations

import msgspec

from millstream.log.errors import LogInputError


class Tiering(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules by which older messages of a log are moved to an object store.

    Objects of about ``segment_bytes`` bytes are written to ``url``, under names that begin with ``folder`` (set by the
    log), as soon as that many bytes are older than ``keep_age`` microseconds and not among the newest ``keep_bytes``.
    With ``parquet`` the messages of each object are also written as a Parquet file.
    """

    url: str
    segment_bytes: int = 128 << 20
    keep_age: int | None = None
    keep_bytes: int | None = None
    parquet: bool = False
    folder: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= 4 << 30:
            raise LogInputError(f"segment_bytes must be 1 to 4 GiB, not {self.segment_bytes}")
