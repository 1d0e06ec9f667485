"""A writer to be killed: appends packs, and prints what was confirmed.

Arguments: URL of the store, run, messages a pack, seconds of the lease, threads, and how many packs each thread has
under way (0: it waits for each). One thread sends with sequences, more of them without. Prints ``ready SEQUENCE LAST``
and then ``THREAD TURN FIRST LAST`` for each pack that is durable.
"""

from __future__ import annotations

import sys
import threading
from collections import deque

from millstream.log import FencedError, IdRange, LogSpec, Writer, WriterFailedError
from millstream.testing.torture.messages import pack
from millstream.testing.torture.opening import open_when_up
from millstream.testing.torture.plan import LOG, PRODUCER

FENCED, FAILED = 7, 8
"""Exit codes of a writer that was replaced, and of one whose store has refused."""


def main(url: str, run: int, count: int, lease: float, threads: int, *, ahead: int) -> None:
    """Append until killed."""
    with open_when_up(url, lease_seconds=lease) as store, store.log(LogSpec(LOG)).writer(PRODUCER) as writer:
        _say(f"ready {writer.sequence} {writer.last_id}")
        for number in range(1, threads):
            threading.Thread(target=_append, args=(writer, run, number, count, ahead), daemon=True).start()
        _append(writer, run, threads if threads > 1 else 0, count, ahead)


def _append(writer: Writer, run: int, thread: int, count: int, ahead: int) -> None:
    turn = writer.sequence if thread == 0 else 0
    under_way: deque[tuple[int, IdRange]] = deque()
    while True:
        turn += 1
        send = writer.append_nowait if ahead else writer.append
        ids = send(pack(run, thread, turn, count), sequence=turn if thread == 0 else None)
        if ids is not None:
            under_way.append((turn, ids))
        while len(under_way) > ahead:
            number, ids = under_way.popleft()
            writer.durable(ids.last)
            _say(f"{thread} {number} {ids.first} {ids.last}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run() -> int:
    """The program; its exit code."""
    words = sys.argv[1:]
    try:
        main(words[0], int(words[1]), int(words[2]), float(words[3]), int(words[4]), ahead=sum(map(int, words[5:])))
    except FencedError as error:
        print(error, file=sys.stderr)
        return FENCED
    except WriterFailedError as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(run())
