"""Fills a disk to its last byte with a log and then does what is to be the way out; prints what happened as JSON.

Arguments: the empty disk, and the scheme of the store.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from pathlib import Path

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, LogStore, StorageFullError, WriterFailedError, open_store
from millstream.log.backends.segments.backend import SegmentsBackend

disk, scheme = Path(sys.argv[1]), sys.argv[2]
draw = random.Random(1)


def fill_up() -> None:
    """Leave not one block of the disk free."""
    with (disk / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def opened() -> LogStore:
    if scheme == "segments":  # whole segments are freed, so there have to be some
        clock = SystemClock()
        return LogStore(SegmentsBackend(disk / "log", clock, segment_bytes=5_000_000), clock)
    return open_store(f"{scheme}:///{disk / 'log'}")


with opened() as store:
    log = store.log(LogSpec("weather", block_messages=20))
    told = ""
    try:
        with log.writer() as writer:
            while True:
                writer.append([draw.randbytes(5000) for _ in range(100)])
                confirmed = writer.last_id
    except WriterFailedError as error:
        told = type(error.__cause__).__name__
    result = {"told": told, "confirmed": confirmed, "writer": log.info().writer}
fill_up()  # files that a store removed when it was closed are not made again without room
with opened() as store:
    log = store.log(LogSpec("weather", block_messages=20), create=False)
    fill_up()
    with log.reader("slow") as reader:
        for batch in reader.batches(max_messages=30):
            reader.ack(batch.ids)
            break
    result["acknowledged"] = log.pointer("slow")
    fill_up()
    try:
        result["freed"] = log.trim(confirmed // 2)
    except StorageFullError as error:
        result["freed"] = str(error)
    result["first_id"], result["readable"] = log.first_id, sum(len(batch) for batch in log.read(log.first_id))
    with log.writer() as writer:
        result["appended"] = writer.append([draw.randbytes(5000)] * 10).first
    result["ok"] = log.verify().ok
    result["writer_after"] = log.info().writer
print(json.dumps(result))
