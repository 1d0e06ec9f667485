"""A program that tests start several times: ``count URL``, or ``make URL LOG`` as soon as it gets SIGUSR1.

``count`` prints how many messages the ids 1 to 100 of the torture's log have. ``make`` says ``ready``, opens the store,
appends one message to LOG, makes the log ``shared``, and prints its name.
"""

from __future__ import annotations

import signal
import sys

from millstream.log import LogSpec, open_store
from millstream.testing.torture import LOG


def run() -> int:
    """The program; its exit code."""
    what, url, *names = sys.argv[1:]
    if what == "count":
        with open_store(url, read_only=True) as store:
            print(sum(map(len, store.log(LogSpec(LOG), create=False).read(1, 100))), flush=True)
        return 0
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print("ready", flush=True)
    signal.sigwait([signal.SIGUSR1])
    with open_store(url) as store:
        with store.log(LogSpec(names[0])).writer() as writer:
            writer.append([b"x"])
        print(store.log(LogSpec("shared")).name, flush=True)
    return 0
