"""Where sealed objects of a log go, and when."""

from __future__ import annotations

import msgspec

from millstream.log.errors import LogInputError


class Tiering(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where sealed objects of a log go, and when.

    At ``url``, under names that begin with ``folder`` (which the log gives), in objects of about ``segment_bytes``
    bytes, as soon as that much is older than ``keep_age`` microseconds and not among the newest ``keep_bytes``. With
    ``parquet`` each object has the same messages beside it as a Parquet file.
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
