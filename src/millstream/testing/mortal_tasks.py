"""Tasks of Spark that die as by ``kill -9`` the first time they are tried: in their beginning, midst or end.

A session takes them with the settings :data:`MORTAL` and a master that tries a task again (``local[2,3]``). Which tasks
die is a function of their stage and partition, and no second try dies, so what a job gives must be what it gives
without.
"""

from __future__ import annotations

import os
import random
import signal
from typing import Any

MORTAL = {"spark.python.daemon.module": "millstream.testing.mortal_tasks"}
"""The settings of a session whose tasks die."""

SHARE = 0.25
"""The part of all tasks that die once."""

LONGEST = 0.1
"""Seconds that a task lives at most which does not come to its end before."""


def seconds_to_live(stage: int, partition: int, attempt: int) -> float | None:
    """After how many seconds a task dies, unless it ends before: then it dies with its last results in its hand.

    None for one that does not die.
    """
    draw = random.Random(f"{stage}/{partition}")
    return draw.uniform(1e-6, LONGEST) if attempt == 0 and draw.random() < SHARE else None


def main() -> None:
    """Serve as the process that Spark forks its Python workers from (:mod:`millstream.pipeline.daemon`)."""
    from pyspark.taskcontext import TaskContext

    from millstream.pipeline import daemon

    set_context, doomed = TaskContext._setTaskContext.__func__, False

    def set_or_die(cls: Any, context: Any) -> None:
        """Called with the context where a task begins, and with None where it has given all it has to give."""
        nonlocal doomed
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        if context is not None:
            left = seconds_to_live(context.stageId(), context.partitionId(), context.attemptNumber())
            doomed = left is not None
            if left is not None:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which is to end
                signal.setitimer(signal.ITIMER_REAL, left)
        set_context(cls, context)

    TaskContext._setTaskContext = classmethod(set_or_die)
    daemon.main()


if __name__ == "__main__":
    main()
