"""``millstream store export`` and ``store import``: bags, and lists of checksums."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import msgspec

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.store_opening import open_named_store
from millstream.core.amounts import counted, size_text
from millstream.core.clock import SystemClock
from millstream.core.durable import output_file, write_durably
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.item_ref import ItemRef
from millstream.mill.merge_join import groups
from millstream.mill.restore.listing import RestorableItem
from millstream.mill.restore.restorer import SMALL, Restorer
from millstream.mill.restore.targets import FolderTarget, StoreTarget, TargetState
from millstream.settings import Settings
from millstream.stores import ChecksumMismatchError, EntryKind, ItemInfo
from millstream.stores.bags import (
    ITEMS,
    PAYLOAD,
    BagError,
    BagItem,
    OpenBag,
    check_name,
    finish_bag,
    guess_type,
    is_bag,
)
from millstream.stores.folder import KIND, decode_path, encode_path, read_kind
from millstream.stores.folders import open_plain
from millstream.stores.hashing import hash_stream, read_up_to

THREADS = 8
"""Files that are read and written at the same time."""

_GROUP = 500


class ExportReport(msgspec.Struct, kw_only=True):
    """The result of an export: numbers of items and bytes, and the items that failed, with reasons."""

    items: int = 0
    bytes: int = 0
    failed: dict[str, str] = {}


class ImportReport(msgspec.Struct, kw_only=True):
    """What was imported: the number of items, the bytes that were written, what was there, and what was left."""

    imported: int = 0
    present: int = 0
    bytes: int = 0
    different: list[str] = []


@example("millstream store export primary photos --bagit bag")
@click.command("export")
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.argument("prefix", default="")
@click.option(
    "--bagit", "bag", type=click.Path(path_type=Path), metavar="FOLDER", help="Write a bag (RFC 8493) into FOLDER."
)
@click.option(
    "--sha256sums",
    "sums",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write a list of the regular files for sha256sum -c (- for standard output).",
)
@click.option("--read", "is_read", is_flag=True, help="Compute all checksums from the bytes, also the recorded ones.")
@data_options
@json_option
def export(
    settings: Settings,
    store_name: str,
    space: str,
    prefix: str,
    *,
    bag: Path | None,
    sums: Path | None,
    is_read: bool,
    as_json: bool,
) -> int:
    """Export SPACE, or the items whose ids begin with PREFIX, as a bag or as a list of checksums.

    Give either --bagit or --sha256sums. A bag has a file for each item, verified on the way, and a tag file with the
    properties, links and empty folders; the same command resumes an export that was interrupted. Exit code 1 if an item
    could not be exported.
    """
    if (bag is None) == (sums is None):
        raise click.UsageError("give exactly one of --bagit FOLDER and --sha256sums FILE")
    providers = ConfiguredStores({store_name: open_named_store(settings, store_name, reads=True)}, SystemClock())
    described = _described(providers, ItemRef(store_name, space, prefix), is_read=is_read)
    report = _write_bag(providers, space, described, bag) if bag else _write_sums(described, sums or Path("-"))
    for name, reason in report.failed.items():
        echo_line(f"{name!r} was not exported: {reason}", err=True)
    if as_json:
        print_json(report)
    elif str(sums) != "-":
        what = f"{counted(report.items, 'item')}, {size_text(report.bytes)}"
        click.echo(f"exported {what}, of {space} in {store_name} to {bag or sums}")
    return 1 if report.failed else 0


@example("millstream store import primary photos --bagit bag --create")
@click.command("import")
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.option(
    "--bagit", "bag", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="Folder of the bag."
)
@click.option("--prefix", default="", help="Prefix of every id, such as 2026/.")
@click.option("--fetch", is_flag=True, help="Fetch the files that the bag lists in fetch.txt, into the bag.")
@click.option("--overwrite", is_flag=True, help="Replace existing items that differ.")
@click.option("--create", is_flag=True, help="Create the store's folder or bucket, and the space, if missing.")
@data_options
@json_option
def import_bag(
    settings: Settings,
    store_name: str,
    space: str,
    *,
    bag: Path,
    prefix: str,
    fetch: bool,
    overwrite: bool,
    create: bool,
    as_json: bool,
) -> int:
    """Import a bag (RFC 8493) into SPACE: each payload file becomes an item with its path as id.

    The bag is validated first: the payload and the tag files by their manifests. A file that changes after that is not
    imported. Exit code 1 if an existing item differs and was kept.
    """
    opened = OpenBag(bag, fetch=fetch)
    store = open_named_store(settings, store_name, create=create)
    if create:
        store.create_space(space)
    target, report = StoreTarget(store, space), ImportReport()

    def take(item: _Import) -> tuple[TargetState, int]:
        """The state of the item before, and the bytes that were written."""
        sha256, size = item.digest()
        info = ItemInfo(prefix + item.name, size, (), item.described.mimetype, item.described.properties)
        state = target.state(info, sha256)
        if state == TargetState.ABSENT or (state != TargetState.SAME and overwrite):
            with item.open() as source:
                target.write(info, source, sha256, replace=overwrite)
            return TargetState.ABSENT, size
        return state, 0

    with ThreadPoolExecutor(THREADS, thread_name_prefix="import") as pool:
        for some in groups(_imports(opened), _GROUP):
            for item, (state, size) in zip(some, pool.map(take, some), strict=True):
                report.bytes += size
                report.imported += state == TargetState.ABSENT
                report.present += state == TargetState.SAME
                if state in (TargetState.DIFFERENT, TargetState.UNREADABLE):
                    report.different.append(prefix + item.name)
    _print_import(report, f"{space} of {store_name}", as_json)
    return 1 if report.different else 0


class _Export(NamedTuple):
    """An item to export; ``reason`` is the reason if it cannot be exported."""

    info: ItemInfo
    place: ItemRef
    sha256: str
    kind: EntryKind


class _Import(NamedTuple):
    """An item of a bag: a file with its checksums, or the text in its description."""

    name: str
    described: BagItem
    path: Path | None
    sums: Mapping[str, str]

    def open(self) -> BinaryIO:
        """The bytes of the item."""
        return io.BytesIO((self.described.text or "").encode()) if self.path is None else open_plain(self.path)

    def digest(self) -> tuple[str, int]:
        """The SHA-256 (hex) and the size, after the bytes were verified against the manifests."""
        with self.open() as file:
            found = hash_stream(file, {"sha256", *self.sums})
        for algorithm, value in self.sums.items():
            if found.sums[algorithm] != value.lower():
                raise ChecksumMismatchError(
                    f"{self.path} has changed since the bag was validated: import the bag again"
                )
        return found.sha256, found.size


def _described(providers: ConfiguredStores, first: ItemRef, *, is_read: bool) -> Iterator[_Export]:
    """Every item of a space whose id begins with that of *first*, with the checksum that its store recorded."""
    store, space = first.store, first.space
    for entries in groups(providers.entries(store, space, prefix=first.content_id), _GROUP):
        infos = providers.find_many(store, space, [entry.content_id for entry in entries])
        for info in infos:
            if info is None:
                continue  # deleted since it was listed
            place = ItemRef(store, space, info.content_id)
            sha256 = None if is_read else info.checksum()
            yield _Export(info, place, sha256 or providers.hash(place).sha256, read_kind(info))


def _write_sums(items: Iterable[_Export], path: Path) -> ExportReport:
    report = ExportReport()

    def lines() -> Iterator[bytes]:
        for item in items:
            if item.kind != EntryKind.FILE:
                continue  # sha256sum would follow a link, and has no line for a folder
            report.items += 1
            report.bytes += item.info.size
            yield _sum_line(item.sha256, decode_path(item.info.content_id) or item.info.content_id.encode())

    if str(path) == "-":
        sys.stdout.buffer.writelines(lines())
        sys.stdout.buffer.flush()
    else:
        with output_file(path) as file:
            file.writelines(lines())
    return report


def _sum_line(sha256: str, name: bytes) -> bytes:
    """A line as sha256sum writes it: a backslash in front says that the name is escaped."""
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if escaped != name else b"") + sha256.encode() + b"  " + escaped + b"\n"


def _write_bag(providers: ConfiguredStores, space: str, items: Iterable[_Export], folder: Path) -> ExportReport:
    if is_bag(folder):
        raise BagError(f"{folder} is already a bag: export into another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAYLOAD).mkdir(exist_ok=True)
    report, described, sums = ExportReport(), list[BagItem](), dict[str, str]()

    def files() -> Iterator[RestorableItem]:
        for item in items:
            content_id, is_file = item.info.content_id, item.kind == EntryKind.FILE
            text, reason = (None, check_name(content_id)) if is_file else _read_text(providers, item)
            if reason:
                report.failed[content_id] = reason
                continue
            described.append(BagItem(content_id, item.info.mimetype, dict(item.info.properties), text))
            if is_file:
                sums[content_id] = item.sha256
                yield RestorableItem(content_id=content_id, sha256=item.sha256, copies=(item.place,))
            else:
                report.items += 1

    for done in Restorer(providers, _PayloadTarget(folder / PAYLOAD), threads=THREADS).run(files()):
        if done.is_good:
            report.items += 1
            report.bytes += done.size
        else:
            report.failed[done.content_id] = "; ".join(copy.reason for copy in done.bad) or done.reason
            del sums[done.content_id]
    needed = [one for one in described if one.is_needed and one.content_id not in report.failed]
    if needed:
        write_durably(folder / ITEMS, b"".join(msgspec.json.encode(one) + b"\n" for one in needed))
    finish_bag(folder, sums, space=space, processes=os.cpu_count() or 1)
    return report


def _read_text(providers: ConfiguredStores, item: _Export) -> tuple[str | None, str | None]:
    """The content of an *item* that is no file, such as a link's target, or else why a bag cannot contain it."""
    with providers[item.place.store].open(item.place.space, item.place.content_id) as file:
        data = read_up_to(file, SMALL)
    if hashlib.sha256(data).hexdigest() != item.sha256:
        return None, f"{item.place} is corrupt: its content does not have the recorded SHA-256 {item.sha256}"
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, f"its target {data!r} is not UTF-8, as a bag requires"


class _PayloadTarget(FolderTarget):
    """The payload of a bag; an item's id is its path, unchanged."""

    def state(self, info: ItemInfo, sha256: str) -> TargetState:
        return super().state(_as_file(info), sha256)

    def write(self, info: ItemInfo, source: BinaryIO, sha256: str, *, replace: bool) -> None:
        super().write(_as_file(info), source, sha256, replace=replace)


def _as_file(info: ItemInfo) -> ItemInfo:
    properties = {name: value for name, value in info.properties.items() if name != KIND}
    return msgspec.structs.replace(info, content_id=encode_path(info.content_id.encode()), properties=properties)


def _imports(bag: OpenBag) -> Iterator[_Import]:
    described = dict(bag.items())
    for name, path, sums in bag.files():
        yield _Import(name, described.pop(name, BagItem(name, guess_type(name))), path, sums)
    for name, item in described.items():
        if item.text is None:
            raise BagError(f"{ITEMS} describes {name!r}, but the bag has no such file: ask the sender for a new bag")
        yield _Import(name, item, None, {})


def _print_import(report: ImportReport, where: str, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    for name in report.different:
        click.echo(
            f"{name!r}: the existing item differs or cannot be read, and was kept; --overwrite replaces it", err=True
        )
    there = f", {report.present:,} were there already" if report.present else ""
    click.echo(f"imported {counted(report.imported, 'item')}, {size_text(report.bytes)}, into {where}{there}")
