"""Checks of optional Python packages, of Java, and of the programs that tests run."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from millstream.cli.doctor_machine import Check
from millstream.core.extras import EXTRAS

_FOLDERS = ("/usr/sbin", "/usr/local/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin")))
_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+).*?;.*extra\s*==\s*["'](?P<extra>[\w-]+)["']""")


class Program(msgspec.Struct, frozen=True):
    """A program of another package of the system."""

    name: str
    program: str
    package: str
    needed_for: str


_OPTIONAL = frozenset({"uvloop"})
"""Without it servers run in the event loop of asyncio."""

_TESTS = "tests, and benchmarks for comparison"
PROGRAMS = (
    Program("MariaDB", "mariadbd", "mariadb-server", _TESTS),
    Program("PostgreSQL", "postgres", "postgresql", _TESTS),
    Program("RabbitMQ", "rabbitmq-server", "rabbitmq-server", _TESTS),
    Program("Mosquitto", "mosquitto", "mosquitto", "tests of MQTT"),
    Program("Redis", "redis-server", "redis-server", "benchmarks for comparison"),
    Program("NATS", "nats-server", "nats-server", "benchmarks for comparison"),
    Program("Chromium", "chromium", "chromium fonts-dejavu-core", "tests of the console"),
    Program("C compiler", "cc", "gcc libc6-dev", "tests of disks that lose writes"),
)


def check_packages(needed: Collection[str], java: str = "") -> Iterator[Check]:
    """Checks of every extra (those in *needed* are required), and of the *java* that Spark would use."""
    for extra, packages in extras().items():
        found = {name: _version(name) for name in packages}
        absent = [name for name, version in found.items() if version is None and name not in _OPTIONAL]
        text = (
            f"without {', '.join(absent)}"
            if absent
            else ", ".join(f"{name} {found[name] or 'not installed'}" for name in packages)
        )
        fix = f"pip install 'millstream[{extra}]'"
        yield Check(extra, not absent, text, EXTRAS[extra].use, fix, optional=extra not in needed)
        if extra == "pipeline" and not absent:
            yield _java(java, optional=extra not in needed)


def extras() -> Mapping[str, Sequence[str]]:
    """The extras of the installed package with the packages that each requires; without those of developers."""
    found: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
    for requirement in importlib.metadata.requires("millstream") or ():
        match = _REQUIREMENT.match(requirement)
        if match and match["extra"] in found and match["name"] != "millstream":
            found[match["extra"]].append(match["name"])
    return found


def check_programs() -> Iterator[Check]:
    """The programs that tests and benchmarks run; the node itself needs none."""
    for each in PROGRAMS:
        path = shutil.which(each.program, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))
        yield Check(
            each.name, path is not None, path or "not installed", each.needed_for, f"apt-get install {each.package}",
            optional=True,
        )  # fmt: skip


def _java(home: str, *, optional: bool) -> Check:
    from millstream.pipeline.java import candidates, explain_java

    usable = any(candidate.usable for candidate in candidates(home))
    fix = "pip install 'millstream[pipeline]', or apt-get install default-jre-headless"
    return Check("Java", usable, explain_java(home), "jobs on Spark", fix, optional=optional)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
