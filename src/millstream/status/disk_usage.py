"""The disks of a node, what is stored on them, and how fast they fill."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.log.backend_schemes import store_files
from millstream.node import Node
from millstream.status.history import MinuteSample
from millstream.status.snapshot import StatusSnapshot
from millstream.status.verdict.store_watch import DiskSpace, StoreState, disk_free, disk_space

DATA_FOLDER, LOG_STORE = "data folder", "log store"
MOST_PARTS = 30
"""Logs whose sizes are remembered, the largest of them."""

_SHORTEST = 600 * MICROSECONDS
"""A pace is known only after so long."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk by its ``mount`` point; ``holds`` lists the parts of the node on it, and ``has_logs`` says whether its
    logs are on it.

    ``free`` and ``total`` are in bytes. ``used_since`` is the number of bytes that all programs together used in the
    last ``seconds`` (negative: freed); ``full_in_seconds`` is the time until the disk is full at that rate. None if
    that is unknown, or the disk does not fill. ``is_filling`` says that this is sooner than the setting
    ``verdict.disk_full_within`` allows.
    """

    mount: str
    holds: Sequence[str]
    free: int
    total: int
    used_since: int | None = None
    seconds: float | None = None
    full_in_seconds: float | None = None
    is_filling: bool = False
    has_logs: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The disk usage of a part of the node: ``bytes``, and how much it has ``grown`` in the last ``seconds`` (None if
    unknown). ``page`` is the page about it.
    """

    part: str
    bytes: int
    page: str
    grown: int | None = None
    seconds: float | None = None


def own_folders(node: Node) -> Mapping[str, Path]:
    """The data folder, and the folder of a log store that the settings name, if that is in files."""
    folders = {DATA_FOLDER: node.folder}
    if node.settings.log.store and (files := store_files(node.settings.log_url)) is not None:
        folders[LOG_STORE] = files if files.is_dir() else files.parent
    return folders


def find_disks(
    node: Node, states: Sequence[StoreState], free_bytes: Callable[[Path], int] = disk_free
) -> Sequence[Disk]:
    """The disks of the node's own folders and of the local stores, as these answered when they were last asked: the
    disk of a store may hang.

    *free_bytes* gives the free space of a folder's disk.
    """
    spaces = dict[str, DiskSpace]()
    for name, folder in own_folders(node).items():
        with contextlib.suppress(OSError):  # who reads or writes there reports the error
            spaces[name] = disk_space(folder, free_bytes)
    for state in states:
        answer = state.answer
        if answer is not None and answer.disk is not None and not state.hangs:
            spaces[f"store {state.store}"] = answer.disk
    disks, holds = dict[int, DiskSpace](), dict[int, list[str]]()
    for name, space in spaces.items():
        disks.setdefault(space.device, space)
        holds.setdefault(space.device, []).append(name)
    logs = LOG_STORE if node.settings.log.store else DATA_FOLDER
    return [
        Disk(
            mount=space.mount,
            holds=holds[device],
            free=space.free,
            total=space.total,
            has_logs=logs in holds[device],
        )
        for device, space in disks.items()
    ]


def part_sizes(node: Node, snapshot: StatusSnapshot | None) -> Mapping[str, int]:
    """The bytes of the largest logs, of the copies in each store, and of the file of the node's database, by part."""
    sizes = dict[str, int]()
    if snapshot is not None:
        largest = sorted(snapshot.logs, key=lambda row: -row.bytes)[:MOST_PARTS]
        sizes |= {f"log {row.log}": row.bytes for row in largest}
        for space in snapshot.spaces:
            sizes[f"store {space.store}"] = sizes.get(f"store {space.store}", 0) + space.bytes
    if node.settings.node.database:  # its server has a disk of its own
        return sizes
    files = (node.folder / f"node.db{end}" for end in ("", "-wal"))
    sizes["database node.db"] = sum(path.stat().st_size for path in files if path.exists())
    return sizes


def disks_by_pace(
    disks: Sequence[Disk], past: Sequence[MinuteSample], now: int, within: int | None = None
) -> Sequence[Disk]:
    """*disks* with their pace since the first of *past* that has them; the one that is full first comes first.

    One that is full in less than *within* microseconds is filling.
    """
    found = []
    for disk in disks:
        first = next(((one.counters.at, one.free[disk.mount]) for one in past if disk.mount in one.free), None)
        if first is not None and now - first[0] >= _SHORTEST:
            seconds, used = (now - first[0]) / MICROSECONDS, first[1] - disk.free
            full = disk.free / used * seconds if used > 0 else None
            is_filling = full is not None and within is not None and full * MICROSECONDS < within
            pace = {"used_since": used, "seconds": seconds, "full_in_seconds": full, "is_filling": is_filling}
            found.append(msgspec.structs.replace(disk, **pace))
        else:
            found.append(disk)
    return sorted(found, key=lambda one: (one.full_in_seconds is None, one.full_in_seconds or one.free))


def usage_by_growth(sizes: Mapping[str, int], past: Sequence[MinuteSample], now: int) -> Sequence[Usage]:
    """Each part of *sizes* with its growth since the first of *past* that has it; first those that grew most, then the
    largest."""
    found = []
    for part, size in sizes.items():
        first = next(((one.counters.at, one.sizes[part]) for one in past if part in one.sizes), None)
        usage = Usage(part=part, bytes=size, page=_page(part))
        if first is not None and now - first[0] >= _SHORTEST:
            usage = msgspec.structs.replace(usage, grown=size - first[1], seconds=(now - first[0]) / MICROSECONDS)
        found.append(usage)
    return sorted(found, key=lambda one: (-(one.grown or 0), -one.bytes))


def filled_by(disk: Disk, usage: Sequence[Usage]) -> Sequence[Usage]:
    """The parts of *usage* on *disk* that have grown, the one that grew most first."""
    on_disk = {kind for kind, is_there in (("database", DATA_FOLDER in disk.holds), ("log", disk.has_logs)) if is_there}
    found = [one for one in usage if one.part.partition(" ")[0] in on_disk or one.part in disk.holds]
    return sorted((one for one in found if one.grown and one.grown > 0), key=lambda one: -(one.grown or 0))


def _page(part: str) -> str:
    kind, _, name = part.partition(" ")
    if kind == "log":
        return f"/logs/{quote(name, safe='')}"
    return f"/integrity?{urlencode({'store': name})}" if kind == "store" else ""
