"""Logs in a bucket compared with logs in MariaDB, SQLite and files, with many unconfirmed messages per sender."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millstream.bench import log
from millstream.bench.runner import Comparison, Size

BACKENDS = "mariadb,sqlite,segments,bucket,bucket-far,memory-bucket-far"


def comparisons(
    size: Size,
    folder: Path,
    *,
    payloads: str | None = None,
    packs: str | None = None,
    backends: str = BACKENDS,
    senders: str | None = None,
    unconfirmed: str | None = None,
    latency: str | None = None,
    seconds: str | None = None,
) -> Iterator[Comparison]:
    """The mode *ahead* of the benchmark of logs, without peers: these wait for each pack."""
    return log.comparisons(
        size,
        folder,
        payloads=payloads,
        packs=packs,
        backends=backends,
        peers="none",
        modes="ahead",
        senders=senders,
        unconfirmed=unconfirmed,
        latency=latency,
        seconds=seconds,
    )
