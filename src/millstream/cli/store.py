"""``millstream store``: spaces and content items on storage providers."""

from __future__ import annotations

import contextlib
import mimetypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import msgspec

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.output import ReaderEndedError, ends_with_reader
from millstream.cli.progress import drawn
from millstream.cli.store_bags import export, import_bag
from millstream.cli.store_opening import open_named_store
from millstream.core.amounts import counted, size_text
from millstream.core.clock import MICROSECONDS
from millstream.core.durable import output_file
from millstream.core.errors import InputError, MillstreamError
from millstream.settings import Settings
from millstream.stores import (
    DEFAULT_MIMETYPE,
    ChecksumMismatchError,
    Entry,
    ItemInfo,
    SpaceAccess,
    all_entries,
    copy_stream,
)

THREADS = 8
"""Number of files that are put at the same time: enough for writes to share commits of the disk."""


class IncompleteOutputError(MillstreamError):
    """The reader of standard output ended first: the content was not read to its end, and not verified."""


@click.group(cls=SummaryGroup)
def store() -> None:
    """Content items on storage providers.

    STORE is the id of a store in the settings, or a URL: file:///folder, cas:///folder, or
    s3://bucket/prefix?endpoint=https://host&region=NAME&profile=NAME. The profile is one of the AWS configuration
    files; credentials=NAME in its place takes NAME_ACCESS_KEY_ID and NAME_SECRET_ACCESS_KEY from the environment.
    """


@example("millstream store list primary photos --prefix 2013/")
@store.command("list")
@click.argument("store_name", metavar="STORE")
@click.argument("space", required=False)
@click.option("--prefix", default="", help="Only items whose ids begin with this prefix.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of items to list (default: all).")
@json_option
@data_options
@ends_with_reader
def list_items(
    settings: Settings, store_name: str, space: str | None, prefix: str, limit: int | None, as_json: bool
) -> None:
    """List the items of SPACE, or without SPACE the spaces of STORE."""
    opened = open_named_store(settings, store_name, reads=True)
    if space is None:
        for name in opened.spaces():
            print_json({"space": name}) if as_json else echo_line(name)
        return
    for entry in _first(all_entries(opened, space, prefix=prefix), limit):
        print_json(entry) if as_json else echo_line(_line(entry))


@example("millstream store create second photos")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@data_options
def create(settings: Settings, store_name: str, space: str) -> None:
    """Create SPACE in STORE, whose folder or bucket must exist.

    A store without any space is treated as unavailable (a disk that is not mounted), and nothing is copied to it. This
    command confirms that it is available and new.
    """
    open_named_store(settings, store_name).create_space(space)


@example("millstream store put primary photos 2013/ --create")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--prefix", default="", help="Prefix of every id, such as 2026/.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="Property of each item; repeatable.")
@click.option("--create", is_flag=True, help="Create the store's folder or bucket, and the space, if missing.")
@click.option("--create-only", is_flag=True, help="Fail instead of replacing an item.")
@json_option
@data_options
def put(
    settings: Settings,
    store_name: str,
    space: str,
    paths: tuple[Path, ...],
    prefix: str,
    pairs: tuple[str, ...],
    create: bool,
    create_only: bool,
    as_json: bool,
) -> None:
    """Put files, and all files in folders, into SPACE; symbolic links are skipped.

    The id of a file is its name; of a file in a folder, its path in the folder.
    """
    opened = open_named_store(settings, store_name, create=create)
    if create:
        opened.create_space(space)
    properties = _properties(pairs)
    files = _files(paths, prefix)

    def put_one(file: _File) -> ItemInfo:
        mimetype = mimetypes.guess_type(file.path.name)[0] or DEFAULT_MIMETYPE
        with file.path.open("rb") as source:
            return opened.put(
                space, file.content_id, source, mimetype=mimetype, properties=properties, create_only=create_only
            )

    infos = _in_parallel(put_one, files)
    if as_json:
        for info in infos:
            print_json(_facts(info))
    else:
        size = sum(info.size for info in infos)
        click.echo(f"put {counted(len(infos), 'item')}, {size_text(size)}, into {space} of {opened.url}")


@example("millstream store get primary photos 2013/a.jpg a.jpg")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.argument("content_id")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default=Path("-"))
@data_options
@ends_with_reader
def get(settings: Settings, store_name: str, space: str, content_id: str, file: Path) -> None:
    """Write the bytes of an item to FILE (or standard output), and verify them against the provider's checksum.

    Exit code 1 if they differ; then FILE is not written.
    """
    opened = open_named_store(settings, store_name, reads=True)
    expected = opened.info(space, content_id).checksum()
    with opened.open(space, content_id) as source, _sink(file) as sink:
        found = copy_stream(source, sink).sha256
        if expected not in (None, found):
            raise ChecksumMismatchError(
                f"{content_id!r} in {space} of {opened.url} is corrupt: its content has SHA-256 "
                f"{found}, but {expected} was recorded; get the item from another copy"
            )


@example("millstream store delete primary photos 2013/a.jpg")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.argument("content_ids", nargs=-1)
@data_options
def delete(settings: Settings, store_name: str, space: str, content_ids: tuple[str, ...]) -> None:
    """Delete the items CONTENT_IDS of SPACE; without any, delete SPACE itself, which must be empty."""
    opened = open_named_store(settings, store_name)
    for content_id in content_ids:
        opened.delete(space, content_id)
    if not content_ids:
        opened.delete_space(space)


@example("millstream store props primary photos 2013/a.jpg --set reviewed=yes")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.argument("content_id")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Set a property; repeatable.")
@click.option("--unset", "names", multiple=True, metavar="NAME", help="Remove a property; repeatable.")
@json_option
@data_options
def props(
    settings: Settings,
    store_name: str,
    space: str,
    content_id: str,
    pairs: tuple[str, ...],
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show an item with its properties, or change its properties.

    After a change, the item is printed with its new properties.
    """
    opened = open_named_store(settings, store_name, reads=not (pairs or names))
    info = opened.info(space, content_id)
    if pairs or names:
        kept = {name: value for name, value in info.properties.items() if name not in names}
        info = opened.set_properties(space, content_id, kept | _properties(pairs))
    if as_json:
        print_json(_facts(info))
        return
    for name, value in _facts(info).items():
        if name not in ("checksums", "properties"):
            echo_line(f"{name}: {value}")
    for checksum in info.checksums:
        echo_line(f"{checksum.algorithm} ({checksum.origin}): {checksum.value}")
    for name, value in sorted(info.properties.items()):
        echo_line(f"property {name}: {value}")


@example("millstream store cp primary photos 2013/a.jpg backup")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.argument("content_id")
@click.argument("to_space")
@click.argument("to_content_id", required=False)
@data_options
def cp(
    settings: Settings, store_name: str, space: str, content_id: str, to_space: str, to_content_id: str | None
) -> None:
    """Copy an item within STORE to TO_SPACE, with its mimetype and properties.

    The copy has the id TO_CONTENT_ID (default: CONTENT_ID).
    """
    open_named_store(settings, store_name).copy(space, content_id, to_space, to_content_id or content_id)


@example("millstream store acl primary photos --set group-readers=read")
@store.command()
@click.argument("store_name", metavar="STORE")
@click.argument("space")
@click.option(
    "--set", "pairs", multiple=True, metavar="NAME=ACCESS", help="Give NAME the access read or write; repeatable."
)
@click.option("--unset", "names", multiple=True, metavar="NAME", help="Remove NAME from the list; repeatable.")
@click.option("--replace", is_flag=True, help="Replace the whole list, even a damaged one, by the entries of --set.")
@json_option
@data_options
def acl(
    settings: Settings,
    store_name: str,
    space: str,
    pairs: tuple[str, ...],
    names: tuple[str, ...],
    replace: bool,
    as_json: bool,
) -> None:
    """Show or change who may read and write SPACE. NAME is a user, or group-NAME for a group.

    After a change, the new list is printed. The list is kept for the repository in front of the store; the store itself
    does not enforce it.
    """
    if replace and names:
        raise InputError(
            "--replace and --unset cannot be combined: with --replace, give only the entries to keep, with --set"
        )
    changes = bool(pairs or names or replace)
    opened = open_named_store(settings, store_name, reads=not changes)
    acls = {} if replace else dict(opened.space_acls(space))
    if changes:
        acls = {name: access for name, access in acls.items() if name not in names} | _accesses(pairs)
        opened.set_space_acls(space, acls)
    if as_json:
        print_json(acls)
        return
    for name, access in sorted(acls.items()):
        echo_line(f"{name}: {access}")


store.add_command(export)
store.add_command(import_bag)


class _File(NamedTuple):
    path: Path
    content_id: str


def _files(paths: Iterable[Path], prefix: str) -> Sequence[_File]:
    """The files at and below *paths*. Raises :class:`InputError` if two have the same id, and OSError for a folder that
    cannot be read."""
    found = dict[str, Path]()
    for path in paths:
        below = sorted(_below(path)) if path.is_dir() else [path]
        for file in below:
            content_id = prefix + (file.relative_to(path).as_posix() if file != path else path.name)
            if content_id in found:
                raise InputError(
                    f"{found[content_id]} and {file} have the same id, {content_id}: put them one after the other, "
                    "with another --prefix for one of them; nothing was put"
                )
            found[content_id] = file
    return [_File(path, content_id) for content_id, path in found.items()]


def _below(folder: Path) -> Iterator[Path]:
    """The files below *folder*, without symbolic links."""

    def fail(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=fail):
        files = (Path(parent, name) for name in names)
        yield from (file for file in files if file.is_file() and not file.is_symlink())


def _properties(pairs: Iterable[str]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"invalid property {pair!r}: write NAME=VALUE")
        properties[name] = value
    return properties


def _accesses(pairs: Iterable[str]) -> dict[str, SpaceAccess]:
    accesses = _properties(pairs)
    for name, access in accesses.items():
        if access not in set(SpaceAccess):
            raise InputError(f"invalid access {access!r} for {name!r}: write {name}=read or {name}=write")
    return {name: SpaceAccess(access) for name, access in accesses.items()}


def _in_parallel(function: Callable[[_File], ItemInfo], files: Sequence[_File]) -> list[ItemInfo]:
    """The results of *function* for *files*, in their order; a bar shows how far it is. The first error ends it."""
    infos = []
    with ThreadPoolExecutor(THREADS) as pool, drawn() as progress:
        task = progress.add_task("putting", total=len(files))
        try:
            for info in pool.map(function, files):
                infos.append(info)
                progress.advance(task)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return infos


def _facts(info: ItemInfo) -> dict[str, object]:
    facts: dict[str, object] = msgspec.structs.asdict(info)
    return {name: value for name, value in facts.items() if value is not None}


def _first(entries: Iterator[Entry], limit: int | None) -> Iterator[Entry]:
    for number, entry in enumerate(entries):
        if number == limit:
            return
        yield entry


def _line(entry: Entry) -> str:
    when = "-" * 19
    if entry.modified is not None:
        when = datetime.fromtimestamp(entry.modified / MICROSECONDS, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{entry.size:>12}  {when}  {entry.content_id}"


@contextlib.contextmanager
def _sink(file: Path) -> Iterator[BinaryIO]:
    """The output: standard output, or a file that appears only when it is complete."""
    if str(file) == "-":
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except ReaderEndedError as error:
            raise IncompleteOutputError from error
    else:
        with output_file(file) as sink:
            yield sink
