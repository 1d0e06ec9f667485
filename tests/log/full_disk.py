"""A log on a small disk of its own that runs full, of bytes or of files, and is freed; prints what happened as JSON.

Arguments: the empty disk, the scheme of the store, ``bytes`` or ``files``.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from pathlib import Path

from millstream.core.clock import SystemClock
from millstream.log import Log, LogSpec, LogStore, Writer, WriterBusyError, WriterFailedError, open_store
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.testing.waiting import until

disk, scheme, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
draw = random.Random(1)
ballast = disk / "ballast"
ballast.mkdir()


def opened() -> LogStore:
    if kind == "files":
        clock = SystemClock()
        return LogStore(SegmentsBackend(disk / "log", clock, segment_bytes=100_000), clock, lease_seconds=1)
    return open_store(f"{scheme}:///{disk / 'log'}", lease_seconds=1)


def next_writer(log: Log) -> Writer:
    """The last one could not give back its lease where even that needs room: it runs out."""

    def attempt() -> Writer | None:
        with contextlib.suppress(WriterBusyError):
            return log.writer()
        return None

    found = until(attempt, "the lease")
    assert found is not None
    return found


def fill(store: LogStore) -> dict[str, object]:
    confirmed = 0
    try:
        with store.log(LogSpec("weather")).writer() as writer:
            for turn in range(10_000):
                if kind == "files":
                    with contextlib.suppress(OSError):
                        (ballast / str(turn)).touch()
                writer.append([draw.randbytes(5000) for _ in range(10)])
                confirmed = writer.last_id
    except WriterFailedError as error:
        return {"confirmed": confirmed, "cause": type(error.__cause__).__name__, "told": str(error)}
    return {"confirmed": confirmed, "cause": "", "told": ""}


if kind == "bytes":
    (ballast / "large").write_bytes(bytes(3 << 20))
with opened() as store:
    result = fill(store)
    full = store.log(LogSpec("weather"))
    result["readable"] = sum(len(batch) for batch in full.read())
    result["ok_while_full"] = full.verify().ok
    for file in ballast.iterdir():
        file.unlink()
    with next_writer(full) as writer:
        result["last_before"] = writer.last_id
        writer.append([draw.randbytes(5000)] * 10)
    result["last_after"] = full.last_id
with opened() as store:
    result["ok"] = store.log(LogSpec("weather")).verify().ok
print(json.dumps(result))
