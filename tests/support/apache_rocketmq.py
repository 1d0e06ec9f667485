"""Apache RocketMQ's own server for tests: name server, broker and proxy in two Java machines on loopback.

Nothing is fetched here: *jars* is a folder with the server's jars and what they need, which Maven puts there by the
``pom.xml`` in ``tests/messaging/apache``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from millstream.core.clock import Clock, SystemClock
from millstream.testing.parent_watchdog import ParentWatchdog
from millstream.testing.ports import free_ports
from millstream.testing.programs import LocalServerError, find_program

START_SECONDS = 120.0
ATTEMPTS = 3

_NAME_SERVER_MEMORY = ("-Xms128m", "-Xmx128m", "-XX:MaxDirectMemorySize=64m")
_SERVER_MEMORY = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=384m", "-XX:MaxMetaspaceSize=192m")
_ADMIN_MEMORY = ("-Xmx128m",)


class ApacheRocketMQ:
    """A server on the classpath *jars* whose state is in *folder*. Use it in a ``with`` block, or start and stop it."""

    def __init__(self, jars: Path, folder: Path, *, clock: Clock | None = None) -> None:
        self._jars = jars
        self._folder = folder
        self._clock = clock or SystemClock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._keepers: list[ParentWatchdog] = []
        self._name_port, self._port, self._remoting_port, self._broker_port = free_ports(4)

    @property
    def place(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers. Raises :class:`LocalServerError` with the end of its output."""
        self._lay_out()
        name_server = self._folder / "namesrv.conf"
        self._launch("namesrv", _NAME_SERVER_MEMORY, "namesrv.NamesrvStartup", "-c", str(name_server))
        self._await(self._name_port, "namesrv")
        proxy, broker = self._folder / "proxy.json", self._folder / "broker.conf"
        files = ("-pm", "local", "-pc", str(proxy), "-bc", str(broker), "-n", self._names)
        self._launch("proxy", _SERVER_MEMORY, "proxy.ProxyStartup", *files)
        self._await(self._port, "proxy")

    def kill(self) -> None:
        """Let it die as ``kill -9`` does; to kill it again does nothing."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        self._running.clear()
        while self._keepers:
            self._keepers.pop().dismiss()

    def create_topic(self, name: str, kind: str) -> None:
        """Make the topic *name* of the type *kind*."""
        kinds = ("-r", "4", "-w", "4", "-a", f"+message.type={kind}")
        self.ask("updateTopic", "-c", "DefaultCluster", "-t", name, *kinds)

    def make_group(self, name: str, *, ordered: bool) -> int:
        """Make the group *name*, whose messages are tried :data:`ATTEMPTS` times, a second apart at first."""
        policy = json.dumps({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000]}})
        retries = ("-r", str(ATTEMPTS - 1), "-p", policy)
        self.ask("updateSubGroup", "-c", "DefaultCluster", "-g", name, "-o", str(ordered).lower(), *retries)
        return ATTEMPTS

    def ask(self, command: str, *arguments: str) -> str:
        """Run the admin tool's *command*, until it succeeds: a broker that has just started is not known at once."""
        deadline = self._clock.monotonic() + START_SECONDS
        line = self._java(_ADMIN_MEMORY, "tools.command.MQAdminStartup", command, "-n", self._names, *arguments)
        while True:
            found = subprocess.run(line, capture_output=True, text=True, check=False, env=self._environment())
            output = found.stdout + found.stderr
            if found.returncode == 0 and "Exception" not in output and "success" in output:
                return output
            if self._clock.monotonic() > deadline:
                raise LocalServerError(f"{command} of Apache RocketMQ's admin tool failed:\n{output[-2000:]}")
            self._clock.sleep(0.5)

    @property
    def _names(self) -> str:
        return f"127.0.0.1:{self._name_port}"

    def _lay_out(self) -> None:
        (self._folder / "namesrv.conf").write_text(f"listenPort={self._name_port}\nbindAddress=127.0.0.1\n")
        proxy = {
            "rocketMQClusterName": "DefaultCluster", "localServeAddr": "127.0.0.1", "grpcServerPort": self._port,
            "remotingListenPort": self._remoting_port, "grpcThreadPoolNums": 8,
        }  # fmt: skip
        (self._folder / "proxy.json").write_text(json.dumps(proxy))
        store = self._folder / "store"
        broker = {
            "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": 0,
            "brokerRole": "ASYNC_MASTER", "flushDiskType": "ASYNC_FLUSH", "brokerIP1": "127.0.0.1",
            "listenPort": self._broker_port, "bindAddress": "127.0.0.1", "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog", "mappedFileSizeCommitLog": 1 << 26,
            "mappedFileSizeConsumeQueue": 600_000, "maxHashSlotNum": 50_000, "maxIndexNum": 200_000,
            "diskMaxUsedSpaceRatio": 95, "autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "true",
            "timerWheelEnable": "true", "recallMessageEnable": "true", "enablePropertyFilter": "true",
            "transactionTimeOut": 6000, "transactionCheckInterval": 5000,
        }  # fmt: skip
        (self._folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in broker.items()))

    def _java(self, memory: Sequence[str], main: str, *arguments: str) -> list[str]:
        java = find_program("java", "default-jre-headless")
        home = (f"-Duser.home={self._folder}", "-cp", f"{self._jars}/*", f"org.apache.rocketmq.{main}")
        return [java, *memory, "-XX:+UseSerialGC", *home, *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self._folder), "NAMESRV_ADDR": self._names}

    def _launch(self, name: str, memory: Sequence[str], main: str, *arguments: str) -> None:
        with (self._folder / f"{name}.out").open("wb") as output:
            line = self._java(memory, main, *arguments)
            self._running.append(
                subprocess.Popen(
                    line, env=self._environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip
            self._keepers.append(ParentWatchdog(self._running[-1].pid))

    def _await(self, port: int, name: str) -> None:
        deadline = self._clock.monotonic() + START_SECONDS
        while not _answers(port):
            if self._running[-1].poll() is not None or self._clock.monotonic() > deadline:
                output = (self._folder / f"{name}.out").read_text("utf-8", "replace")
                self.kill()
                raise LocalServerError(f"{name} of Apache RocketMQ did not start:\n{output[-2000:]}")
            self._clock.sleep(0.1)


def fetch_jars(pom: Path, folder: Path) -> None:
    """Have Maven put what *pom* needs into *folder*. Raises :class:`LocalServerError`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(pom, folder / "pom.xml")
    maven = find_program("mvn", "maven")
    line = [
        maven,
        "-B",
        "-q",
        "-f",
        str(folder / "pom.xml"),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    found = subprocess.run(line, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if found.returncode:
        raise LocalServerError(f"Maven could not fetch Apache RocketMQ:\n{(found.stdout + found.stderr)[-2000:]}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
