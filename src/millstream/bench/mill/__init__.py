"""Bulk tasks: every bit checked, copies made and found unchanged, against sha256sum and rclone, on the same files.

Our copies are audited, synced to the disk before they are confirmed, and proven to hash to what the source's provider
recorded; those of rclone are not synced.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.bench.mill.fixture import COPY, LARGE, FileTree, MillFixture, fill, large_files, small_files
from millstream.bench.mill.listed import prepare
from millstream.bench.processes import cpu_seconds
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError, MillstreamError
from millstream.stores import LocalStore
from millstream.testing.rclone import program, rclone

ROUNDS = 3
FILES: dict[Size, int] = {"quick": 50, "small": 2_000, "full": 20_000}
MEGABYTES: dict[Size, int] = {"quick": 4, "small": 512, "full": 4_096}
LISTED: dict[Size, int] = {"quick": 2_000, "small": 100_000, "full": 1_000_000}
PARALLEL = 2
"""Readers at once, ours and those of sha256sum."""

_clock = SystemClock()
_numbers = itertools.count(1)


def comparisons(
    size: Size, folder: Path, files: str | None = None, megabytes: str | None = None, listed: str | None = None
) -> Iterator[Comparison]:
    """Sweeps, first duplications and loops without a change over large and over small files; a loop over a listing.

    *files* is the number of small ones, *megabytes* the size of all large ones together, *listed* the items listed. On
    the disk there are three times the large files at most. The full size has one round.
    """
    program()
    source, first, once = folder / "source", folder / "first", size == "full"
    trees = [
        large_files(_number("megabytes", megabytes, MEGABYTES[size]) << 20),
        small_files(_number("files", files, FILES[size])),
    ]
    for tree in trees:
        fill(LocalStore(source), tree)
        first.mkdir()
        yield _duplications(first, tree, source, once=once)
        with MillFixture.opened(folder / "standing", source) as shop:
            shop.duplicate(tree)
            yield _sweeps(shop, tree, source, once=once)
            yield _loops(shop, tree, source, once=once)
        shutil.rmtree(first)
    items = _number("listed", listed, LISTED[size])
    prepare(folder, items)
    yield Comparison(
        title=f"A loop without a change over {items:,} listed items",
        unit="items/s",
        conditions="source and copy list as many, and the manifest has a row for each; in a process of its own",
        contenders=[Contender("millstream", functools.partial(_listed, folder, items))],
        once=once,
    )


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--{name} is a whole number from 1 on, not {text!r}")
    return int(text)


def _described(tree: FileTree) -> str:
    return f"{tree.files:,} {tree.space} files ({tree.bytes / 1e6:,.0f} MB)"


def _sweeps(shop: MillFixture, tree: FileTree, source: Path, *, once: bool) -> Comparison:
    copies = tree.folder(shop.folder / COPY)
    return Comparison(
        title=f"Integrity sweep of {_described(tree)}",
        unit="MB/s",
        conditions=(
            f"files in the page cache; {PARALLEL} readers. sha256sum only prints sums. rclone check --download "
            "compares two copies, and the bytes of both are counted. Ours compares provider, bytes, manifest and audit "
            "log, writes down each outcome, and reads small files in as many processes as there are readers"
        ),
        contenders=[
            Contender(f"sha256sum, xargs -P{PARALLEL}", lambda: _read(tree, lambda: _sha256sum(copies))),
            Contender("rclone check --download", lambda: _read(tree, lambda: _check(source, copies, tree), sides=2)),
            Contender("millstream", lambda: _read(tree, lambda: shop.sweep(tree, threads=PARALLEL))),
        ],
        once=once,
    )


def _loops(shop: MillFixture, tree: FileTree, source: Path, *, once: bool) -> Comparison:
    def loop() -> None:
        plan = shop.plan(tree, shop.low)
        assert (plan.same, plan.tasks) == (tree.files, 0), "nothing has changed"

    copies = shop.folder / "rclone" / tree.space
    _sync(source, copies, tree)
    return Comparison(
        title=f"A loop without a change over {_described(tree)}",
        unit="files/s",
        conditions="both compare sizes and times of all files; ours also the checksums that the manifest has of both",
        contenders=[
            Contender("rclone sync", lambda: _timed(tree.files, lambda: _sync(source, copies, tree))),
            Contender("millstream", lambda: _timed(tree.files, loop)),
        ],
        once=once,
    )


def _duplications(folder: Path, tree: FileTree, source: Path, *, once: bool) -> Comparison:
    return Comparison(
        title=f"First duplication of {_described(tree)}",
        unit="MB/s",
        conditions=(
            "from one folder to another of the same disk. Ours is recorded, planned, queued, copied, proven against "
            "the source's checksum, synced, audited and written into manifest and audit log; small files in up to "
            "four processes beside the one that does the rest"
        ),
        contenders=[
            Contender("rclone sync", lambda: _copied(folder, tree, source, durable=False)),
            Contender("rclone sync, then sync of the disk", lambda: _copied(folder, tree, source, durable=True)),
            Contender("millstream", lambda: _duplicated(folder, tree, source)),
        ],
        once=once,
    )


def _copied(folder: Path, tree: FileTree, source: Path, *, durable: bool) -> Measurement:
    copies = folder / f"rclone-{next(_numbers)}"
    os.sync()

    def copy() -> None:
        _sync(source, copies, tree)
        if durable:
            os.sync()

    sample = _read(tree, copy)
    _remove(copies, tree)
    return sample


def _duplicated(folder: Path, tree: FileTree, source: Path) -> Measurement:
    os.sync()
    with contextlib.closing(MillFixture(folder / f"millstream-{next(_numbers)}", source)) as shop:
        sample = _read(tree, lambda: shop.duplicate(tree))
    _remove(shop.folder, tree)
    return sample


def _remove(folder: Path, tree: FileTree) -> None:
    """Remove large copies at once, for their bytes, and small ones after everybody's turn: ext4 makes new files slowly
    for minutes after many have been removed, and whoever came next would be measured with that."""
    if tree.space == LARGE:
        shutil.rmtree(folder)


def _sha256sum(folder: Path) -> None:
    found = subprocess.Popen(["find", folder, "-type", "f", "-print0"], stdout=subprocess.PIPE)
    each = "1" if folder.name == "large" else "64"
    subprocess.run(
        ["xargs", "-0", f"-P{PARALLEL}", "-n", each, "sha256sum"],
        stdin=found.stdout,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert found.stdout is not None
    found.stdout.close()
    found.wait()


def _check(source: Path, copies: Path, tree: FileTree) -> None:
    _run("check", "--download", f"--checkers={PARALLEL}", str(tree.folder(source)), str(copies))


def _sync(source: Path, copies: Path, tree: FileTree) -> None:
    _run("sync", str(tree.folder(source)), str(copies))


def _run(*arguments: str) -> None:
    done = rclone(*arguments)
    if done.returncode:
        raise MillstreamError(f"rclone {arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")


def _listed(folder: Path, items: int) -> Measurement:
    code = "from millstream.bench.mill.listed import main; main()"
    command = [sys.executable, "-c", code, str(folder), str(items)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    seconds, used, memory = map(float, printed.split())
    return Measurement(items / seconds, {"seconds": seconds, "CPU seconds": used, "MiB at most": memory})


def _read(tree: FileTree, work: Callable[[], object], *, sides: int = 1) -> Measurement:
    sample = _timed(tree.files * sides, work)
    return Measurement(sample.value * tree.bytes / tree.files / 1e6, {"files/s": sample.value, **sample.figures})


def _timed(count: int, work: Callable[[], object]) -> Measurement:
    """How many a second, and what one takes of a processor: on a machine that others use, the better figure."""
    began, used = _clock.monotonic(), cpu_seconds()
    work()
    used = cpu_seconds() - used
    return Measurement(count / (_clock.monotonic() - began), {"CPU µs/file": used / count * 1e6})
