"""``millstream protect`` beside ``rclone sync`` and ``rclone check``: a folder, and a bucket, of many small items.

Each makes a copy in a folder and one in a bucket of a private Swift. ``python -m millstream_peers.protect``, with
``benchmarks`` on ``PYTHONPATH``, prints a table, and whether each change was named rightly afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.core.clock import SystemClock
from millstream.stores.s3 import connect, parse_address
from millstream.testing import services
from millstream.testing.swift import ENVIRONMENT
from millstream_peers.rclone import program, rclone

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SPACE = "photos"
_SEED = 2013


class Case(NamedTuple):
    """A source as each tool names it, where its files can be changed, and where the copies go."""

    name: str
    source: str
    rclone_source: str
    folder: Path
    copies: tuple[str, ...]
    rclone_copies: tuple[str, ...]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--below", type=Path, default=None, help="where the data goes")
    parser.add_argument("--only", choices=["folder", "bucket"], default=None)
    parser.add_argument("--without-rclone", action="store_true", help="measure only protect, which needs no rclone")
    asked = parser.parse_args()
    with_rclone = not asked.without_rclone
    if with_rclone:
        program()
    with tempfile.TemporaryDirectory(prefix="protect-bench-", dir=asked.below) as scratch:
        with services.private("swift", folder=Path(scratch)) as server:
            folder = Path(scratch) / SPACE
            size = make_files(folder, asked.items)
            print(f"{asked.items:,} files of 0 B to 200 KB, {size / 1e6:,.1f} MB; load {os.getloadavg()[0]:.1f}")
            print("| source | step | seconds | exit code |\n|---|---|---|---|", flush=True)
            for case in _cases(Path(scratch), folder, server.url, with_rclone=with_rclone):
                if asked.only in (None, case.name):
                    _measure(case, Path(scratch) / f"node-{case.name}", with_rclone=with_rclone)
        print(f"load {os.getloadavg()[0]:.1f}")


def make_files(folder: Path, count: int) -> int:
    """*count* files below *folder*, of sizes as people have them: most are small. Returns their bytes."""
    chance, total = random.Random(_SEED), 0
    for number in range(count):
        size = chance.choice((chance.randint(0, 1_000), chance.randint(1_000, 20_000), chance.randint(0, 200_000)))
        path = folder / f"{number % 50:02}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if number % 500 == 0 else chance.randbytes(size))
        total += path.stat().st_size
    return total


def _remotes(url: str) -> dict[str, str]:
    options = {
        "TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": parse_address(url).endpoint or "", "REGION": "us-east-1",
        "ACCESS_KEY_ID": ENVIRONMENT["MILLSTREAM_TEST_S3_ACCESS_KEY_ID"], "FORCE_PATH_STYLE": "true",
        "SECRET_ACCESS_KEY": ENVIRONMENT["MILLSTREAM_TEST_S3_SECRET_ACCESS_KEY"],
    }  # fmt: skip
    return {f"RCLONE_CONFIG_SWIFT_{name}": value for name, value in options.items()}


def _cases(scratch: Path, folder: Path, url: str, *, with_rclone: bool) -> Iterator[Case]:
    base, _, query = url.partition("?")
    bucket = base.removeprefix("s3://")
    os.environ.update(ENVIRONMENT)
    os.environ.update(_remotes(url))
    for name in ("folder", "bucket"):
        ours, theirs = f"s3://{bucket}-{name}?{query}", f"swift:{bucket}-{name}-rclone"
        source, rclone_source = str(folder), str(folder)
        if name == "bucket":
            source, rclone_source = f"s3://{bucket}-source?{query}", f"swift:{bucket}-source"
        case = Case(
            name, source, rclone_source, folder, (str(scratch / f"{name}-copy"), ours),
            (str(scratch / f"{name}-rclone"), theirs),
        )  # fmt: skip
        if name == "bucket":
            _fill(case, with_rclone=with_rclone)
        yield case


def _fill(case: Case, *, with_rclone: bool) -> None:
    """Make the objects of the source bucket of *case* those of its folder. Unchanged objects are not written again."""
    if with_rclone:
        assert _rclone("sync", str(case.folder), case.rclone_source)[1] == 0
    else:
        address = parse_address(case.source)
        upload(case.folder, connect(address), address.bucket)


def upload(folder: Path, client: S3Client, bucket: str) -> None:
    """Make the objects of *bucket* the files of *folder*, as ``rclone sync`` does."""
    if bucket not in (one["Name"] for one in client.list_buckets()["Buckets"]):
        client.create_bucket(Bucket=bucket)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    known = {one["Key"]: one["ETag"].strip('"') for page in pages for one in page.get("Contents", [])}
    for path in folder.rglob("*.jpg"):
        key, data = path.relative_to(folder).as_posix(), path.read_bytes()
        if known.pop(key, None) != hashlib.md5(data, usedforsecurity=False).hexdigest():
            client.put_object(Bucket=bucket, Key=key, Body=data)
    for key in known:
        client.delete_object(Bucket=bucket, Key=key)


def _measure(case: Case, data: Path, *, with_rclone: bool) -> None:
    def ours(step: str, *arguments: str) -> dict[str, Any]:
        report: dict[str, Any] = {}

        def act() -> int:
            code, found = _protect(case, data, *arguments)
            report.update(found)
            return code

        _row(case, step, act)
        return report

    def theirs(step: str, *commands: Sequence[str]) -> None:
        if with_rclone:
            _row(
                case,
                step,
                lambda: max(_rclone(*one, case.rclone_source, to)[1] for one in commands for to in case.rclone_copies),
            )

    ours("protect, first run")
    theirs("rclone sync + check, first run", ["sync"], ["check"])
    ours("protect, nothing changed")
    theirs("rclone sync + check, nothing changed", ["sync"], ["check"])
    ours("protect --read all, nothing changed", "--read", "all")
    theirs("rclone sync + check --download, nothing changed", ["sync"], ["check", "--download"])
    changed = change(case)
    if case.name == "bucket":
        _fill(case, with_rclone=with_rclone)
    report = ours("protect --read all, after changes", "--read", "all")
    print(f"changed: {changed}\nnamed: {_named(report)}", flush=True)


def change(case: Case) -> dict[str, int]:
    """Edit, rename, delete and damage files of the source and of its copy in a folder, unnoticed by the tools.

    A bucket as the source is to be filled again from the changed folder.
    """
    names = sorted(str(path.relative_to(case.folder)) for path in case.folder.rglob("*.jpg") if path.stat().st_size > 8)
    edited, renamed, deleted, rotten, damaged = (names[start : start + 20] for start in range(0, 100, 20))
    for name in edited:
        (case.folder / name).write_bytes(f"edited in the {case.name}: {name}".encode())
    for name in renamed:
        (case.folder / name).rename(case.folder / name.replace(".jpg", "-renamed.jpg"))
    for name in deleted:
        (case.folder / name).unlink()
    if case.name == "bucket":
        rotten = []  # a bucket's rot is below its interface
    for name in rotten:
        _flip(case.folder / name)
    for name in damaged:
        _flip(Path(case.copies[0]) / SPACE / name)
    return {
        "edited": len(edited), "renamed": len(renamed), "deleted": len(deleted), "rotten at the source": len(rotten),
        "rotten copies": len(damaged),
    }  # fmt: skip


def _flip(path: Path) -> None:
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _named(report: dict[str, Any]) -> dict[str, Any]:
    found = report.get("adoption", {})
    copies = report.get("copies", [])
    return {
        "changed": found.get("changed"), "renamed": found.get("moved"), "vanished": report.get("vanished"),
        "suspected rot": found.get("suspected"), "repaired": [one["repaired"] for one in copies],
        "verified": [one["verified"] for one in copies], "items": report.get("items"),
    }  # fmt: skip


def _row(case: Case, step: str, act: Callable[[], int]) -> None:
    clock = SystemClock()
    began = clock.monotonic()
    code = act()
    print(f"| {case.name} | {step} | {clock.monotonic() - began:,.1f} | {code} |", flush=True)


def _protect(case: Case, data: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    to = [part for one in case.copies for part in ("--to", one)]
    command = [sys.executable, "-m", "millstream", "protect", case.source, *to, "--space", SPACE]
    done = subprocess.run(
        [*command, "--data", str(data), "--json", *arguments], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if not lines:
        raise SystemExit(done.stderr)
    return done.returncode, json.loads(lines[-1])


def _rclone(*arguments: str) -> tuple[str, int]:
    done = rclone(*arguments, remotes={name: os.environ[name] for name in os.environ if name.startswith("RCLONE_")})
    return done.stderr, done.returncode


if __name__ == "__main__":
    main()
