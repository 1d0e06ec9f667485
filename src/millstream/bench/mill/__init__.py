"""Bulk tasks: checking every bit, copying, and finding nothing to copy; compared with sha256sum and rclone.

All work on the same files. Our copies are audited, synced to the disk before they are confirmed, and proven to hash to
what the source's provider recorded; those of rclone are not synced.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from millstream.bench.mill.fixture import (
    COPY,
    LARGE,
    FileTree,
    MillFixture,
    fill,
    large_files,
    small_files,
    write_plain,
)
from millstream.bench.mill.listed import prepare
from millstream.bench.mill.timing import PARALLEL, remove_large, time_bytes, time_files
from millstream.bench.peers import load_peers
from millstream.bench.runner import Comparison, Contender, Measurement, PeerContenders, Size
from millstream.core.amounts import counted
from millstream.core.errors import InputError
from millstream.stores import LocalStore

ROUNDS = 3
MODES = ("copy", "sweep", "loop", "adopt", "listed")
"""The comparisons by name: the first three over large and over small files."""
FILES: dict[Size, int] = {"quick": 50, "small": 2_000, "full": 20_000}
MEGABYTES: dict[Size, int] = {"quick": 4, "small": 512, "full": 4_096}
ADOPTED = 5
"""So many times as many small files are adopted as are copied."""
LISTED: dict[Size, int] = {"quick": 2_000, "small": 100_000, "full": 1_000_000}

_numbers = itertools.count(1)


class MillPeers(Protocol):
    """What the module of the peers has for this benchmark: peers that work on *tree* in the store at *source*."""

    def sweeps(self, tree: FileTree, source: Path, copies: Path) -> PeerContenders:
        """Reading every bit of *copies*."""
        ...

    def loops(self, tree: FileTree, source: Path, folder: Path) -> PeerContenders:
        """Finding that copies below *folder*, which are made here, are unchanged."""
        ...

    def adoptions(self, tree: FileTree, source: Path, folder: Path) -> PeerContenders:
        """Reading every file once, with what is recorded of it below *folder*."""
        ...

    def duplications(self, tree: FileTree, source: Path, folder: Path) -> PeerContenders:
        """Making copies below *folder*."""
        ...


def comparisons(
    size: Size,
    folder: Path,
    files: str | None = None,
    megabytes: str | None = None,
    listed: str | None = None,
    *,
    modes: str = ",".join(MODES),
) -> Iterator[Comparison]:
    """Sweeps, first duplications and loops without a change over large and over small files; an adoption; a loop over a
    listing.

    *files* is the number of small ones, *megabytes* the size of all large ones together, *listed* the items listed,
    *modes* names those of :data:`MODES` that are wanted. On the disk there are three times the large files at most. The
    full size has one round of what is large.
    """
    wanted = _chosen(modes)
    peers = cast(MillPeers | None, load_peers("mill"))
    source = folder / "source"
    trees = [
        large_files(_number("megabytes", megabytes, MEGABYTES[size]) << 20),
        small_files(_number("files", files, FILES[size])),
    ]
    none = PeerContenders()
    for tree in trees:
        once = size == "full" and tree.space == LARGE
        first = folder / f"first-{tree.space}"
        fill(LocalStore(source), tree)
        first.mkdir()
        if "copy" in wanted:
            found = none if peers is None else peers.duplications(tree, source, first)
            yield _duplications(first, tree, source, found, once=once)
        if wanted & {"sweep", "loop"}:
            yield from _of_standing(folder, tree, source, peers, wanted, once=once)
        remove_large(first, tree)
    if "adopt" in wanted:
        yield _adoptions(folder / "adopted", small_files(ADOPTED * trees[-1].files), peers)
    if "listed" in wanted:
        yield _listings(folder, _number("listed", listed, LISTED[size]), once=size == "full")


def _chosen(modes: str) -> set[str]:
    wanted = modes.split(",")
    if unknown := [mode for mode in wanted if mode not in MODES]:
        raise InputError(f"--modes: unknown mode {', '.join(unknown)}; choose from {', '.join(MODES)}")
    return set(wanted)


def _of_standing(
    folder: Path, tree: FileTree, source: Path, peers: MillPeers | None, wanted: set[str], *, once: bool
) -> Iterator[Comparison]:
    """What is done again and again to copies that are there."""
    none = PeerContenders()
    with MillFixture.opened(folder / "standing", source) as shop:
        shop.duplicate(tree)
        copies = tree.folder(shop.folder / COPY)
        if "sweep" in wanted:
            yield _sweeps(shop, tree, none if peers is None else peers.sweeps(tree, source, copies), once=once)
        if "loop" in wanted:
            yield _loops(shop, tree, none if peers is None else peers.loops(tree, source, shop.folder), once=once)


def _listings(folder: Path, items: int, *, once: bool) -> Comparison:
    prepare(folder, items)
    return Comparison(
        title=f"A duplication run with nothing to copy: {items:,} listed items",
        unit="items/s",
        conditions="Source and copy are simulated stores that only list these items, without a disk or network. "
        "The manifest, in SQLite, has a row for each item. The run has a process of its own.",
        contenders=[Contender("millstream", functools.partial(_listed, folder, items))],
        once=once,
    )


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--{name}: invalid value {text!r}: write a whole number of at least 1")
    return int(text)


def _described(tree: FileTree) -> str:
    return f"{counted(tree.files, f'{tree.space} file')} ({tree.bytes / 1e6:,.0f} MB)"


def _sweeps(shop: MillFixture, tree: FileTree, peers: PeerContenders, *, once: bool) -> Comparison:
    return Comparison(
        title=f"Integrity sweep of {_described(tree)}",
        unit="MB/s",
        conditions=(
            f"The files are in the page cache, and there are {PARALLEL} readers. {peers.conditions}Millstream compares "
            "the content with three checksums (of the storage provider, the manifest and the audit log), and records "
            "each result. The readers of files of at most 1 MiB are processes, those of larger files are threads."
        ),
        contenders=[
            *peers.contenders,
            Contender("millstream", lambda: time_bytes(tree, lambda: shop.sweep(tree, threads=PARALLEL))),
        ],
        once=once,
    )


def _loops(shop: MillFixture, tree: FileTree, peers: PeerContenders, *, once: bool) -> Comparison:
    def loop() -> None:
        plan = shop.plan(tree, shop.low)
        assert (plan.same, plan.tasks) == (tree.files, 0), "nothing has changed"

    return Comparison(
        title=f"A duplication run with nothing to copy: {_described(tree)}",
        unit="files/s",
        conditions=f"{peers.conditions}Millstream compares sizes, times and the checksums in the manifest.",
        contenders=[*peers.contenders, Contender("millstream", lambda: time_files(tree.files, loop))],
        once=once,
    )


def _duplications(folder: Path, tree: FileTree, source: Path, peers: PeerContenders, *, once: bool) -> Comparison:
    return Comparison(
        title=f"First duplication of {_described(tree)}",
        unit="MB/s",
        conditions=(
            "Files are copied from one folder to another on the same disk. Millstream records and plans each copy, "
            "verifies the checksum of the source, syncs the copy, and writes manifest and audit log. Up to four "
            "child processes copy files of at most 1 MiB. The main process copies larger files, and does the other "
            f"work.{peers.conditions}"
        ),
        contenders=[*peers.contenders, Contender("millstream", lambda: _duplicated(folder, tree, source))],
        once=once,
    )


def _duplicated(folder: Path, tree: FileTree, source: Path) -> Measurement:
    os.sync()
    with contextlib.closing(MillFixture(folder / f"millstream-{next(_numbers)}", source)) as shop:
        sample = time_bytes(tree, lambda: shop.duplicate(tree))
    remove_large(shop.folder, tree)
    return sample


def _adoptions(folder: Path, tree: FileTree, peers: MillPeers | None) -> Comparison:
    source = folder / "source"
    write_plain(source, tree)
    found = PeerContenders() if peers is None else peers.adoptions(tree, source, folder)
    return Comparison(
        title=f"Adoption of {_described(tree)}",
        unit="MB/s",
        conditions=(
            "Adoption records the files of a folder that other programs write. The files are in the page cache, and "
            f"there are {PARALLEL} readers. {found.conditions}Millstream checks that size and time of each file are as "
            "listed, and records the file durably in its catalogue and manifest."
        ),
        contenders=[*found.contenders, Contender("millstream", lambda: _adopted(folder, tree, source))],
    )


def _adopted(folder: Path, tree: FileTree, source: Path) -> Measurement:
    with contextlib.closing(MillFixture(folder / f"millstream-{next(_numbers)}", source)) as shop:
        return time_bytes(tree, lambda: shop.adopt(tree, source))


def _listed(folder: Path, items: int) -> Measurement:
    code = "from millstream.bench.mill.listed import main; main()"
    command = [sys.executable, "-c", code, str(folder), str(items)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    seconds, used, memory = map(float, printed.split())
    return Measurement(items / seconds, {"seconds": seconds, "CPU seconds": used, "maximum memory, MiB": memory})
