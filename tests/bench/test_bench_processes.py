"""What processes take is counted with all that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.bench.processes import cpu_seconds, descendants, forget_peaks, on_cores, spark_memory
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
    assert running > 0.285, "0.3 s, in steps of 10 ms"


def test_the_time_of_a_process_that_nobody_waits_for_stays_counted() -> None:
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", NESTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = cpu_seconds() - before
        child.kill()  # what it started is somebody else's child from now on, and ends as its input does
    assert cpu_seconds() - before >= running >= 0.29


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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_that_was_given_back_before_does_not_count() -> None:
    held = bytearray(200_000_000)
    held[:: os.sysconf("SC_PAGE_SIZE")] = bytes(len(held[:: os.sysconf("SC_PAGE_SIZE")]))
    with_it = spark_memory()["driver MB"]
    del held
    assert spark_memory()["driver MB"] > with_it - 50
    forget_peaks()
    assert spark_memory()["driver MB"] < with_it - 150
