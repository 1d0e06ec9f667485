"""A stream of a plain Spark session from log to log: whatever is killed, every row is there once, and in order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.pipeline.gateway import spark_home
from millstream.pipeline.java import find_java
from millstream.pipeline.staging import SPACE
from millstream.testing.waiting import until
from suite.sizes import sized

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

PROGRAM = Path(__file__).parent / "children" / "copy_stream.py"
CHUNK = 600
"""Messages that come before each start: four triggers, so that what is open stays small while drivers are killed."""


@pytest.mark.parametrize("trigger", ["continuous", "available-now"])
def test_a_stream_whose_driver_and_workers_are_killed_copies_every_row_once_and_in_order(
    tmp_path: Path, trigger: str
) -> None:
    url, draw = f"sqlite:///{tmp_path / 'log.db'}", random.Random(7)
    kills = sized(ci=2, long=30)
    killed: list[str] = []
    while len(killed) < kills:
        last = feed(url, CHUNK)
        with running(url, tmp_path, trigger, last) as program:
            for victim in draw.choice([("driver",), ("worker", "driver"), ("worker", "worker", "driver")]):
                if reach(program, url, tmp_path, draw) and strike(program, victim, draw):
                    killed.append(victim)
    last = feed(url, CHUNK)
    for _ in range(3):  # a worker that died may end a query, and the first start after a kill may meet the old one
        with running(url, tmp_path, trigger, last) as program:
            if program.wait(300) == 0:
                break
    print(f"{trigger}: {killed.count('driver')} drivers and {killed.count('worker')} workers killed, {last:,} rows")
    assert {"driver"} <= set(killed) <= {"driver", "worker"}
    assert kills <= 2 or "worker" in killed
    with open_store(url) as store:
        given, copied = (
            [(m.body, m.key, m.source, m.event_time) for batch in store.log(LogSpec(name)).read() for m in batch]
            for name in ("in", "out")
        )
    assert copied == given


def feed(url: str, count: int) -> int:
    """Append *count* messages to the log ``in``; its last id."""
    with open_store(url) as store, store.log(LogSpec("in", block_messages=40)).writer() as writer:
        first = writer.last_id + 1
        writer.append([Message(b"%d" % n, f"k{n % 5}", f"s{n % 3}", n) for n in range(first, first + count)])
        return writer.last_id


@contextlib.contextmanager
def running(url: str, folder: Path, trigger: str, last: int) -> Iterator[subprocess.Popen[bytes]]:
    """The program, in a process group of its own, of which nothing is left after the block."""
    environment = os.environ | {
        "JAVA_HOME": str(Path(find_java().executable).resolve().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home()),
    }
    command = [sys.executable, str(PROGRAM), url, str(folder), trigger, str(last)]
    with (folder / "program.log").open("ab") as log:
        program = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def reach(program: subprocess.Popen[bytes], url: str, folder: Path, draw: random.Random) -> bool:
    """Wait until the stream is in the midst of a trigger, or has done some more; whether it still runs then."""
    begin = last_id(url)
    marks: Sequence[Callable[[], bool]] = [
        lambda: is_staged(folder),
        lambda: last_id(url) > begin,
        lambda: last_id(url) > begin + 300,
    ]
    mark = draw.choice(marks)
    until(lambda: program.poll() is not None or mark(), "a trigger of the stream", seconds=300)
    return program.poll() is None


def is_staged(folder: Path) -> bool:
    """Whether a task has stored a part that is not appended yet; what vanishes while it is looked for is not there."""
    with contextlib.suppress(FileNotFoundError):
        return any((folder / "staging" / SPACE).glob("*/part-*"))
    return False


def strike(program: subprocess.Popen[bytes], victim: str, draw: random.Random) -> bool:
    """Kill the driver with its Java machine, or one of the Python processes of Spark; whether there was one."""
    if victim == "driver":
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        return True
    with contextlib.suppress(psutil.NoSuchProcess):
        java = [process for process in psutil.Process(program.pid).children(recursive=True) if "java" in process.name()]
        workers = [each for one in java for each in one.children(recursive=True) if "python" in each.name()]
        if workers:
            draw.choice(workers).kill()
            return True
    return False


def last_id(url: str) -> int:
    with open_store(url) as store:
        return store.log(LogSpec("out")).last_id
