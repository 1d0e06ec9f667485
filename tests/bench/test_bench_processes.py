"""What processes take is counted with all that they start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from millstream.bench.processes import cpu_seconds, descendants, on_cores
from millstream.testing.waiting import until

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
NESTED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\nprint(flush=True)\ninput()"


def test_the_time_of_a_child_counts_while_it_runs_and_after_it_ended() -> None:
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", NESTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()  # the child's child has done its work
        assert len(list(descendants(child.pid))) == 2
        running = cpu_seconds() - before
        child.stdin.write(b"\n")
        child.stdin.flush()
        until(lambda: len(list(descendants(child.pid))) == 1)
        assert cpu_seconds() - before >= running
        child.communicate(b"\n")
    assert running >= 0.29


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_what_is_started_in_the_block_has_so_many_cores() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(1) as cores:
        assert cores == 1
        shown = subprocess.run(
            [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"], capture_output=True, check=True
        )
        assert shown.stdout.strip() == b"1"
    assert os.sched_getaffinity(0) == before
