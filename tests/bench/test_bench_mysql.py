"""The benchmark of the log in MariaDB does the work that it times, on both sides."""

from __future__ import annotations

import os

from millstream.bench.frame import measure
from millstream.bench.log_mysql import MysqlBench
from millstream.core.clock import SystemClock


def test_the_benchmark_of_the_log_in_mariadb_does_the_work_it_times(mariadb: str) -> None:
    bench = MysqlBench(f"{mariadb}bench_{os.getpid()}", SystemClock())
    for found in (bench.both(4, 2, senders=4), bench.wait(3)):
        for row in measure(found, 1, lambda _: None).rows:
            assert row.median > 0
