"""Works on a queue for ever, and says after each step what the queue has confirmed: to be killed."""

from __future__ import annotations

import random
import sys

from millstream.log import LogSpec, open_store
from millstream.queue import LogWorkQueue


def main(url: str, seed: str) -> None:
    draw = random.Random(int(seed))
    queue = LogWorkQueue(open_store(url).log(LogSpec("tasks")), snapshot_after=50)
    while True:
        tasks = queue.put([b"task"] * draw.randrange(1, 5))
        say("put", *tasks)
        for lease in queue.lease(draw.randrange(1, 5), visibility=3600):
            say("leased", lease.task_id, lease.attempts)
            if draw.random() < 0.6:
                say("acking", lease.task_id)
                queue.ack([lease])
                say("acked", lease.task_id)
            elif draw.random() < 0.5:
                say("burying", lease.task_id)
                queue.dead_letter(lease, cause="drill")
                say("dead", lease.task_id)


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
