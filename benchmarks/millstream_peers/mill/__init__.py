"""Other ways to check, copy and compare files: ``sha256sum`` and rclone."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from millstream.bench.mill.fixture import FileTree
from millstream.bench.mill.timing import PARALLEL, remove_large, time_bytes, time_files
from millstream.bench.runner import Contender, Measurement, PeerContenders
from millstream.core.errors import MillstreamError
from millstream_peers.rclone import rclone
from millstream_peers.sha256sum import sha256sum

_numbers = itertools.count(1)


def sweeps(tree: FileTree, source: Path, copies: Path) -> PeerContenders:
    """Reading every bit of *copies*."""

    def hash_all() -> None:
        found = sha256sum(copies, processes=PARALLEL, at_once=1 if copies.name == "large" else 64)
        assert found >= tree.files, "every file was hashed"

    def compare() -> None:
        _run("check", "--download", f"--checkers={PARALLEL}", str(tree.folder(source)), str(copies))

    return PeerContenders(
        [
            Contender(f"sha256sum, xargs -P{PARALLEL}", lambda: time_bytes(tree, hash_all)),
            Contender("rclone check --download", lambda: time_bytes(tree, compare, sides=2)),
        ],
        "sha256sum only prints sums. rclone check --download compares two copies, and the bytes of both are counted. ",
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
        ],
        ". rclone copies what differs in size or time",
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


def _sync(source: Path, copies: Path, tree: FileTree) -> None:
    _run("sync", str(tree.folder(source)), str(copies))


def _run(*arguments: str) -> None:
    done = rclone(*arguments)
    if done.returncode:
        raise MillstreamError(f"rclone {arguments[0]} ended with {done.returncode}: {done.stderr[-500:]}")
