"""The support for clusters whose hosts share only the network: nothing of it outlives the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.core.processes import find_process
from millstream.testing.waiting import until
from support.separate_cluster import SeparateCluster

SUBMIT_AND_END = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from support.separate_cluster import SeparateCluster

cluster = SeparateCluster(SimpleNamespace(url="spark://127.0.0.1:1"), Path(sys.argv[1], "driver"), {"results": ""})
cluster._submit = SimpleNamespace(command=lambda *_: ["sleep", "600"], environment=lambda _: dict(os.environ))
with cluster._submitted([]) as (driver, _):
    print(driver.pid, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_submitted_driver_ends_where_a_signal_ends_the_tests(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SUBMIT_AND_END, tmp_path]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    driver = int(ended.stdout)
    try:
        until(lambda: find_process(driver) is None, "the end of the driver", seconds=10)
    finally:
        if find_process(driver) is not None:
            os.killpg(driver, signal.SIGKILL)


def test_a_driver_that_logs_more_than_a_pipe_holds_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = SimpleNamespace(url="spark://127.0.0.1:1")
    cluster = SeparateCluster(server, tmp_path / "driver", {"results": ""})
    program = [sys.executable, "-c", "import sys; sys.stderr.write('x' * 1_000_000); print('done')"]
    submit = SimpleNamespace(command=lambda *_: program, environment=lambda _: dict(os.environ))
    monkeypatch.setattr(cluster, "_submit", submit)
    with cluster._submitted([]) as (driver, _):
        assert driver.wait(60) == 0
