"""A Spark cluster whose hosts share nothing but the network, and what kills its workers, executors and drivers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from millstream.testing.parent_watchdog import ParentWatchdog
from millstream.testing.ports import free_ports
from millstream.testing.services import Server, private
from millstream.testing.spark import OWN_DISKS, OWN_NETWORKS
from millstream.testing.waiting import until
from suite.missing import started
from support.spark_submit import SparkSubmit

Victim = Literal["worker", "executor", "driver"]

PROGRAM = Path(__file__).parents[1] / "pipeline" / "cluster_job.py"

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java's fast compiler alone: half the processor time of programs of a minute."""


_SECONDS_A_JOB = 200
"""What a job may take on a busy machine, with the start of its driver."""


class SeparateCluster:
    """Three workers in networks of their own, none of which sees *folder*, the driver's: :func:`separate_cluster`."""

    def __init__(self, server: Server, folder: Path, urls: Mapping[str, str]) -> None:
        self._server, self._folder = server, folder
        self.address = urlsplit(server.url).hostname or ""
        self._urls = {name: url.replace("127.0.0.1", self.address) for name, url in urls.items()}
        self._submit = SparkSubmit(folder.parent)
        self._output, self._errors = (folder.parent / f"driver.{name}" for name in ("out", "err"))

    def run(self, jobs: Sequence[str], kills: Sequence[tuple[str, Victim]] = ()) -> dict[str, Any]:
        """What the *jobs* give, one after the other, with one *victim* killed in the middle of each job of *kills*.

        A job whose driver was killed is submitted again; jobs that were done by then are not run again.
        """
        left = list(kills)
        while True:
            with self._submitted(jobs) as (driver, port):
                while left:
                    job, victim = left.pop(0)
                    self._kill(job, victim, driver, port)
                    if victim == "driver":
                        break
                else:
                    code = driver.wait(timeout=_SECONDS_A_JOB * max(2, len(jobs)))
                    assert code == 0, self._said()
                    found: dict[str, Any] = json.loads(self._output.read_text("utf-8").splitlines()[-1])
                    return found

    @contextlib.contextmanager
    def _submitted(self, jobs: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """The driver that runs *jobs*, and the port of its REST interface.

        It writes to files: of a pipe that nobody reads, its log fills all that there is once a worker has died.
        """
        (port,) = free_ports(1)
        confs = {
            "spark.driver.host": self.address,
            "spark.driver.bindAddress": self.address,
            "spark.ui.port": str(port),
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.task.maxFailures": "4",
            "spark.speculation": "true",
            "spark.sql.shuffle.partitions": "4",
            "spark.millstream.results": self._urls["results"],
        }
        arguments = [str(self._folder), json.dumps(self._urls), *jobs]
        with (
            self._output.open("wb") as output,
            self._errors.open("wb") as errors,
            subprocess.Popen(
                self._submit.command(self._server.url, PROGRAM, arguments, confs),
                env=self._submit.environment(self.address),
                stdout=output,
                stderr=errors,
                start_new_session=True,
            ) as driver,
        ):
            watchdog = ParentWatchdog(driver.pid)
            try:
                yield driver, port
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                watchdog.dismiss()

    def _kill(self, job: str, victim: Victim, driver: subprocess.Popen[bytes], port: int) -> None:
        """Kill *victim* while *job* has tasks that run; it must not have ended by then."""
        until(
            lambda: (self._folder / f"{job}.began").exists() or driver.poll() is not None, f"{job} begins", seconds=300
        )
        busy = until(lambda: self._busy_hosts(port) or driver.poll() is not None, f"tasks of {job}", seconds=120)
        assert driver.poll() is None, self._said()
        assert isinstance(busy, list)
        if victim == "driver":
            os.killpg(driver.pid, signal.SIGKILL)
        else:
            (worker,) = self._workers(busy[0])
            executors = children(worker)
            assert executors, "a worker without an executor"
            for pid in (worker, *executors) if victim == "worker" else executors:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert not (self._folder / f"{job}.done").exists(), f"{job} was over when its {victim} was killed"

    def _said(self) -> str:
        """The end of what the driver has logged."""
        return self._errors.read_text("utf-8", "replace")[-6000:]

    def _busy_hosts(self, port: int) -> list[str]:
        """The addresses of workers whose executors have tasks that run, by Spark's REST interface."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, LookupError):
            (application,) = self._ask(port, "")
            executors = self._ask(port, f"/{application['id']}/executors")
            hosts = [each["hostPort"].partition(":")[0] for each in executors if each["activeTasks"]]
            return [host for host in hosts if self._workers(host)]
        return []

    def _ask(self, port: int, path: str) -> Any:
        with contextlib.closing(http.client.HTTPConnection(self.address, port, timeout=10)) as connection:
            connection.request("GET", f"/api/v1/applications{path}")
            return json.loads(connection.getresponse().read())

    def _workers(self, address: str) -> list[int]:
        """The process of the worker at *address*; none where it was killed."""
        return [pid for pid in self._server.processes if {b"Worker", address.encode()} <= words_of(pid)]


@contextlib.contextmanager
def separate_cluster(folder: Path, urls: Mapping[str, str]) -> Iterator[SeparateCluster]:
    """A cluster whose hosts share a database and an S3 server at *urls* (of loopback) and otherwise only the network.

    *folder* is the driver's: workers have an empty disk at its path. Fails or skips where this machine cannot do so.
    """
    folder.mkdir()
    ports = {str(port) for url in urls.values() for port in ports_of(url)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OWN_DISKS, str(folder))
        patch.setenv(OWN_NETWORKS, " ".join(sorted(ports)))
        with started(lambda: private("spark")) as server:
            yield SeparateCluster(server, folder, urls)


def ports_of(url: str) -> list[int]:
    """The ports of loopback in *url*, whose endpoint may be one of its parameters."""
    return [int(text.split("/")[0].split("&")[0]) for text in url.split("127.0.0.1:")[1:]]


def children(pid: int) -> list[int]:
    """The processes that *pid* has started, by whichever of its threads."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text("ascii").split()]


def words_of(pid: int) -> set[bytes]:
    """The words of the command of *pid*, and of a class the last part."""
    with contextlib.suppress(OSError):
        return {
            word.rpartition(b".deploy.worker.")[2] for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        }
    return set()
