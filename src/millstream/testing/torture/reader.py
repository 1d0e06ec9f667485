"""A reader to be killed: follows the log, and acknowledges what it was given.

Arguments: URL of the store, messages a batch. Prints ``given FIRST LAST`` before it acknowledges a batch, and after
that ``acked LAST TIME`` with the machine's monotonic time in seconds.
"""

from __future__ import annotations

import sys

from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.testing.torture.opening import open_when_up
from millstream.testing.torture.plan import CONSUMER, LOG


def main(url: str, count: int) -> None:
    """Read until killed."""
    clock = SystemClock()
    with open_when_up(url) as store, store.log(LogSpec(LOG)).reader(CONSUMER) as reader:
        for batch in reader.batches(count, follow=True):
            _say(f"given {batch.first_id} {batch.last_id}")
            reader.ack(batch.ids)
            _say(f"acked {batch.last_id} {clock.monotonic()}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run() -> int:
    """The program; its exit code."""
    main(sys.argv[1], int(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(run())
