"""Uses clients before and after a fork: ``python forked.py HOST:PORT before|after|late``; prints what came of it.

``before`` has a client run while the process forks, ``late`` forks after its last client has ended, ``after`` forks
first and starts clients in the child only.
"""

from __future__ import annotations

import os
import sys

from millstream.messaging.client import ForkedError, Message
from millstream.messaging.client.blocking import Producer


def use(producer: Producer) -> str:
    try:
        producer.start()
        producer.send(Message("forks", b"x"))
    except ForkedError as error:
        return f"refused: {error}"
    return "sent"


def main(place: str, when: str) -> None:
    old = Producer(place, ["forks"])
    if when != "after":
        print("parent", use(old), flush=True)
    if when == "late":
        old.close()
    child = os.fork()
    if child == 0:
        if when == "before":
            try:
                old.send(Message("forks", b"x"))
            except ForkedError as error:
                print("old client refused:", error, flush=True)
            old.close()
        print("child", use(Producer(place, ["forks"])), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("child ended with", status, flush=True)
    if when == "before":
        print("parent", use(old), flush=True)
        old.close()


main(*sys.argv[1:])
