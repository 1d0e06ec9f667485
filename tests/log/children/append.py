"""A writer to be killed: appends packs with sequences, and prints what was confirmed.

Arguments: URL of the store, messages a pack, lease in seconds, 1 to append from four threads without sequences.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from millstream.log import FencedError, LogSpec, Writer, WriterFailedError, open_store

FENCED, FAILED = 7, 8


def main(url: str, count: int, lease: float, threaded: bool) -> int:
    with open_store(url, lease_seconds=lease) as store, store.log(LogSpec("torture")).writer("child") as writer:
        say(f"ready {writer.sequence} {writer.last_id}")
        if threaded:
            for number in range(3):
                threading.Thread(target=append_forever, args=(writer, count, number), daemon=True).start()
        append_forever(writer, count, None if not threaded else 3)
    return 0


def append_forever(writer: Writer, count: int, thread: int | None) -> None:
    turn = writer.sequence
    while True:
        turn += 1
        sequence = turn if thread is None else None
        ids = writer.append(pack(turn, count, thread), sequence=sequence)
        if ids is not None:
            say(f"{turn} {ids.first} {ids.last} {thread or 0}")


def pack(turn: int, count: int, thread: int | None) -> Sequence[bytes]:
    return [b"%d %d %d" % (thread or 0, turn, n) for n in range(count)]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "1"))
    except FencedError as error:
        print(error, file=sys.stderr)
        sys.exit(FENCED)
    except WriterFailedError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
