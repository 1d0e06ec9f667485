"""A broker in a process of its own, to be killed and started again: for tests of clients, ours and yours.

``python -m millstream.testing.brokers STORE-URL PORT LIMITS-JSON DEATH-JSON CALLS`` is that process; it prints its port
when it accepts calls.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from millstream.core.address import Address
from millstream.core.decoding import prepared
from millstream.core.event_loop import run_server
from millstream.core.interpreter import collect_for_requests
from millstream.log import open_store
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.testing.call_log import CallLog
from millstream.testing.crashing_calls import CrashInterceptor, CrashPoint

IMPATIENT = Limits(shortest=1_000_000, max_attempts=4, backoff=(1_000_000,), first_check=500_000, check_every=1_000_000)
"""Limits for tests that do not want to wait: a second where a broker in earnest has ten, four attempts at most."""


class BrokerProcess:
    """A broker on the log store *url*, on the same port of loopback each time it is started.

    *python* begins its command (:func:`~millstream.testing.disk.small.on_a_small_disk`), *environment* is that of its
    process; what clients and it say goes into the file *calls*.
    """

    def __init__(
        self,
        url: str,
        limits: Limits = IMPATIENT,
        *,
        python: Sequence[str] = (sys.executable,),
        environment: Mapping[str, str] | None = None,
        calls: Path | None = None,
    ) -> None:
        self._python, self._environment, self._calls = python, environment, str(calls or "")
        self.url = url
        self.port = 0
        self._limits = msgspec.json.encode(limits).decode()
        self._process: subprocess.Popen[str] | None = None

    @property
    def place(self) -> Address:
        """Where it listens."""
        return Address("127.0.0.1", self.port)

    @property
    def pid(self) -> int:
        """The id of its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, death: CrashPoint | None = None) -> None:
        """Start it and wait until it accepts calls. It dies by itself at *death*; :meth:`wait` returns then."""
        self.kill()
        command = [*self._python, "-m", __name__, self.url, str(self.port), self._limits]
        command += [msgspec.json.encode(death).decode(), self._calls]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker on {self.url} did not start; the cause is in its error output")
        self.port = int(line)

    def kill(self) -> None:
        """Let it die as ``kill -9`` does; to kill it again does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def wait(self) -> None:
        """Return when it has died."""
        if self._process is not None:
            self._process.wait()

    def create_topic(self, name: str, kind: str = "NORMAL", queues: int = 4) -> None:
        """Make the topic *name*, which takes messages of the type *kind*."""
        call_broker(self.place, CREATE_TOPIC, TopicSpec(name, kind, queues))


async def _serve(url: str, port: int, limits: Limits, death: CrashPoint | None, calls: str) -> None:
    mortal = [*([CallLog(Path(calls))] if calls else ()), *([CrashInterceptor(death)] if death is not None else ())]
    with open_store(url) as store:
        async with BrokerServer(store, Address("127.0.0.1", port), limits=limits, interceptors=mortal) as server:
            collect_for_requests()  # as `millstream serve` does
            print(server.port, flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    _limits = msgspec.json.decode(sys.argv[3], type=prepared(Limits))
    _death = msgspec.json.decode(sys.argv[4], type=prepared(CrashPoint | None))
    run_server(_serve(sys.argv[1], int(sys.argv[2]), _limits, _death, sys.argv[5]))
