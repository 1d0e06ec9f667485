"""``spark-submit`` of the PySpark package, with Millstream as an archive that is shipped to executors."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.pipeline.gateway import spark_home
from millstream.pipeline.java import find_java
from millstream.pipeline.package_zip import write_package


class SparkSubmit:
    """Job files are run with a Python below *folder* that has the dependencies of Millstream alone, and its archive."""

    def __init__(self, folder: Path) -> None:
        self._python = python_without_millstream(folder / "python")
        self._archive = folder / "millstream.zip"
        write_package(self._archive)

    def command(self, master: str, program: Path, arguments: Sequence[str], confs: Mapping[str, str]) -> list[str]:
        """The command that runs *program* with *arguments* on *master*, with the Spark settings *confs*."""
        settings = [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
        words = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--executor-memory", "512m"]
        return [*words, *settings, "--py-files", str(self._archive), str(program), *arguments]

    def environment(self, address: str = "127.0.0.1") -> dict[str, str]:
        """The environment of the command, for a driver that listens on *address*."""
        return without_path() | {
            "JAVA_HOME": str(Path(find_java().executable).resolve().parent.parent),
            "PYSPARK_PYTHON": str(self._python),
            "PYSPARK_DRIVER_PYTHON": str(self._python),
            "SPARK_LOCAL_IP": address,
            "SPARK_HOME": str(spark_home()),
        }


def without_path() -> dict[str, str]:
    """The environment of this process, but for what Python finds by it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python_without_millstream(folder: Path) -> Path:
    """A Python with the packages of this one but for Millstream, which a ``.pth`` file makes known to this one."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    python = folder / "bin" / "python"
    command = [str(python), "-c", "import pyspark, millstream"]
    found = subprocess.run(command, env=without_path(), capture_output=True, check=False)
    assert b"No module named 'millstream'" in found.stderr
    return python
