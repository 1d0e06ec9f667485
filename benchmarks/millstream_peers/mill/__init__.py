"""Other ways to check, copy and compare files: ``sha256sum``, rclone, and the least that small files cost."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

from millstream.bench.mill.fixture import SMALL, FileTree
from millstream.bench.mill.timing import PARALLEL, remove_large, time_bytes, time_files
from millstream.bench.runner import Contender, Measurement, PeerContenders
from millstream.core.errors import MillstreamError
from millstream_peers import small_files_floor
from millstream_peers.rclone import rclone
from millstream_peers.sha256sum import sha256sum

_MINIMAL = "minimal program"
_numbers = itertools.count(1)


def sweeps(tree: FileTree, source: Path, copies: Path) -> PeerContenders:
    """Reading every bit of *copies*."""

    def hash_all() -> None:
        found = sha256sum(copies, processes=PARALLEL, at_once=1 if copies.name == "large" else 64)
        assert found >= tree.files, "every file was hashed"

    def compare() -> None:
        _run("check", "--download", f"--checkers={PARALLEL}", str(tree.folder(source)), str(copies))

    contenders = [
        Contender(f"sha256sum, xargs -P{PARALLEL}", lambda: time_bytes(tree, hash_all)),
        Contender("rclone check --download", lambda: time_bytes(tree, compare, sides=2)),
    ]
    if tree.space == SMALL:
        own = copies.parent.parent / "floor"
        _floor("duplicate", source, own / "copy", own)
        sweep = functools.partial(_floor, "sweep", own / "copy", own)
        contenders.append(Contender(_MINIMAL, lambda: time_bytes(tree, sweep)))
    return PeerContenders(
        contenders,
        "sha256sum only prints checksums. rclone check --download compares two copies, and the bytes of both count. ",
    )


def adoptions(tree: FileTree, source: Path, folder: Path) -> PeerContenders:
    """Reading every file of *tree* once, and recording what it hashes to below *folder*."""

    def hash_all() -> None:
        assert sha256sum(source / tree.space, processes=PARALLEL, at_once=64) >= tree.files, "every file was hashed"

    def floor() -> Measurement:
        return time_bytes(tree, lambda: _floor("adopt", source, folder / f"floor-{next(_numbers)}"))

    return PeerContenders(
        [
            Contender(f"find, sha256sum, xargs -P{PARALLEL}", lambda: time_bytes(tree, hash_all)),
            Contender(_MINIMAL, floor),
        ],
        "sha256sum only prints checksums. ",
    )


def loops(tree: FileTree, source: Path, folder: Path) -> PeerContenders:
    """Finding that a copy below *folder*, which is made here, is unchanged."""
    copies = folder / "rclone" / tree.space
    _sync(source, copies, tree)
    return PeerContenders(
        [Contender("rclone sync", lambda: time_files(tree.files, lambda: _sync(source, copies, tree)))],
        "rclone compares sizes and times of all files. ",
    )


def duplications(tree: FileTree, source: Path, folder: Path) -> PeerContenders:
    """Making copies below *folder*."""
    return PeerContenders(
        [
            Contender("rclone sync", lambda: _copied(folder, tree, source, durable=False)),
            Contender("rclone sync, then sync of the disk", lambda: _copied(folder, tree, source, durable=True)),
            *([Contender(_MINIMAL, lambda: _floor_copied(folder, tree, source))] if tree.space == SMALL else []),
        ],
        " rclone copies files that differ in size or time.",
    )


def _copied(folder: Path, tree: FileTree, source: Path, *, durable: bool) -> Measurement:
    copies = folder / f"rclone-{next(_numbers)}"
    os.sync()

    def copy() -> None:
        _sync(source, copies, tree)
        if durable:
            os.sync()

    sample = time_bytes(tree, copy)
    remove_large(copies, tree)
    return sample


def _floor_copied(folder: Path, tree: FileTree, source: Path) -> Measurement:
    own = folder / f"floor-{next(_numbers)}"
    os.sync()
    return time_bytes(tree, lambda: _floor("duplicate", source, own / "copy", own))


def _floor(*arguments: str | Path) -> None:
    command = [sys.executable, small_files_floor.__file__, *map(str, arguments)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _sync(source: Path, copies: Path, tree: FileTree) -> None:
    _run("sync", str(tree.folder(source)), str(copies))


def _run(*arguments: str) -> None:
    done = rclone(*arguments)
    if done.returncode:
        raise MillstreamError(f"rclone {arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")
