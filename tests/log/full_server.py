"""A writer to a private server whose own small disk runs full, and is freed; prints what happened as JSON.

Arguments: the empty disk, the name of the server, the part of the store's URL after it.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
from pathlib import Path

from millstream.core.clock import SystemClock
from millstream.log import LogError, LogSpec, Writer, open_store
from millstream.testing import services
from millstream.testing.services import Server
from millstream.testing.waiting import until

disk, name, rest = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
SPEC = LogSpec("weather", compression="plain")
AFTER = 5  # packs that are appended once there is room again


class Filler:
    """Appends until told to stop, with a new writer where one has failed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.confirmed: list[int] = []
        self.failures: list[str] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with open_store(self.url, lease_seconds=1) as store, store.log(SPEC).writer() as writer:
                    self.append(writer)
            except LogError as error:
                self.failures.append(type(error.__cause__ or error).__name__)
                self.stop.wait(0.3)

    def append(self, writer: Writer) -> None:
        draw = random.Random(1)
        while not self.stop.is_set():
            writer.append([b"%d " % (writer.last_id + 1) + draw.randbytes(500_000)])
            self.confirmed.append(writer.last_id)


def wait_until_full(server: Server, filler: Filler) -> str:
    """Until the server has ended, has refused, or has not answered for a while: which of them it was."""
    clock = SystemClock()
    seen, since = 0, clock.monotonic()
    while server.is_running and not filler.failures and clock.monotonic() - since < 20:
        if len(filler.confirmed) != seen:
            seen, since = len(filler.confirmed), clock.monotonic()
        clock.sleep(0.05)
    return "refused" if filler.failures else "hangs" if server.is_running else "died"


ballast = disk / "ballast"
ballast.write_bytes(bytes(30 << 20))
with services.private(name, folder=disk) as server:
    filler = Filler(server.url + rest)
    filler.thread.start()
    what = wait_until_full(server, filler)
    before = len(filler.confirmed)
    ballast.unlink()
    if what == "died":
        server.start()
    with contextlib.suppress(TimeoutError):
        until(lambda: len(filler.confirmed) >= before + AFTER)
    filler.stop.set()
    filler.thread.join()
    with open_store(server.url + rest) as store:
        log = store.log(SPEC, create=False)
        found = [int(m.body.split(b" ", 1)[0]) for batch in log.read() for m in batch]
        result = {
            "server": what, "before": before, "failures": filler.failures, "after": len(filler.confirmed) - before,
            "confirmed": filler.confirmed[-1], "dense": found == list(range(1, len(found) + 1)),
            "stored": len(found), "ok": log.verify().ok,
        }  # fmt: skip
print(json.dumps(result))
