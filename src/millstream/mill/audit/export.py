"""The audit log as files of text at a storage provider, for readers without access to the node (reference mill §1.7).

Each (account, store, space) has its own files, which begin with a heading; a new one begins at 10 MiB. The files
themselves record what was exported, so there is no other state, a killed run loses nothing, and a file that was deleted
is written again. The newest file also records which files were before it, so that a run asks for the metadata of one
file, however many there are. The format is ``docs/formats/audit.md``.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from millstream.core.shown_commands import arguments
from millstream.mill.audit.audit_log import COLUMNS, AuditLog, tsv_lines
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import MillError
from millstream.mill.reports.folder import encode_name
from millstream.stores.audit import AuditEvent, AuditOutbox, settle_ended
from millstream.stores.hashing import read_up_to
from millstream.stores.protocol import ItemInfo

MOST_BYTES = 10 * 1024 * 1024
"""A file that would be longer with one more event is full."""

MIMETYPE = "text/tab-separated-values"

_HEADING = next(tsv_lines([])).encode()
_FIRST, _LAST, _EARLIER = "first-event", "last-event", "earlier-files"
_AT = COLUMNS.index("at")
_NAME = re.compile(r"\d{12,}\.tsv")


class AuditExportError(MillError):
    """A file of the exported audit log is not as it was written."""


class _ExportFolder(msgspec.Struct):
    """The files of one (account, store, space): their sizes in bytes, as listed, and as written by this run.

    ``events`` gives those of the log whose numbers are above the first number and at most the second.
    """

    prefix: str
    sizes: dict[str, int]
    events: Callable[[int, int], Iterator[AuditEvent]]

    def earlier(self, name: str) -> str:
        """The SHA-256 (hex) of the sizes and ids of the files before *name*: another one if any was deleted."""
        lines = (f"{self.sizes[one]} {one}\n" for one in sorted(self.sizes) if one < name)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class Exported(msgspec.Struct):
    """The result of a run: written ``events``, and ``files``, including existing ones that grew."""

    events: int = 0
    files: int = 0


class AuditExport:
    """Exports *log* to *space* of *store*. Events of that space itself are left out, or there would be no end of them.

    An event is exported once all before it are in the log: *outbox* has those that are not.
    """

    def __init__(self, providers: ConfiguredStores, log: AuditLog, outbox: AuditOutbox, store: str, space: str) -> None:
        self._providers, self._log, self._outbox = providers, log, outbox
        self._store, self._space = store, space

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Exported:
        """Export what was not exported before; first what ended processes have left open is settled.

        Raises :class:`AuditExportError` where the newest file of a space is not what was exported or ends with an event
        that the log lacks, or a file there was written by another program; nothing is added to it then.
        """
        settle_ended(self._providers.values())
        done = Exported()
        spaces_by_account = [
            place for place in self._log.spaces_by_account() if place[1:] != (self._store, self._space)
        ]
        if spaces_by_account:
            self._providers.make_space(self._store, self._space)
        for account, store_id, space in spaces_by_account:
            if stopping():
                break
            self._export(account, store_id, space, done)
        return done

    def _export(self, account: str, store: str, space: str, done: Exported) -> None:
        prefix = "".join(f"{encode_name(name)}/" for name in (account, store, space))

        def events(after: int, until: int) -> Iterator[AuditEvent]:
            return self._log.events(store, space, account=account, after=after, until=until)

        folder = _ExportFolder(prefix, self._sizes(prefix), events)
        settled, after = self._outbox.settled(store, space), 0
        newest = self._info(next(reversed(folder.sizes)), prefix) if folder.sizes else None
        if newest is not None:
            last = int(newest.properties[_LAST])
            if next(events(last - 1, last), None) is None:
                raise self._restored_error(newest)
        if newest is not None and newest.properties.get(_EARLIER) == folder.earlier(newest.content_id):
            after = int(newest.properties[_LAST])
        elif newest is not None:
            others = [self._info(name, prefix) for name in folder.sizes if name != newest.content_id]
            for file in [*others, newest]:  # first what lies before and between them: files that were deleted
                if (first := int(file.properties[_FIRST])) > after + 1:
                    self._write_all(folder, events(after, first - 1), None, done)
                after = max(after, int(file.properties[_LAST]))
        self._write_all(folder, events(after, settled), newest, done)

    def _write_all(
        self, folder: _ExportFolder, events: Iterator[AuditEvent], grown: ItemInfo | None, done: Exported
    ) -> None:
        """Write *events* to as many files as they fill; the first of them continues *grown* if that has room.

        No event before them may be missing: the last of the files records those before it as complete.
        """
        first = next(events, None)
        if first is None:
            return
        name, start, data = f"{folder.prefix}{first.number:012d}.tsv", first.number, bytearray(_HEADING)
        if grown is not None:
            written = self._exported(folder, grown)
            if len(written) < MOST_BYTES:
                name, start, data = grown.content_id, int(grown.properties[_FIRST]), written
        last = 0
        for event, line in _lines(itertools.chain([first], events)):
            if len(data) > len(_HEADING) and len(data) + len(line) > MOST_BYTES:
                if last:
                    self._write(folder, name, data, {_FIRST: str(start), _LAST: str(last)}, done)
                name, start, data = f"{folder.prefix}{event.number:012d}.tsv", event.number, bytearray(_HEADING)
            data += line
            last = event.number
            done.events += 1
        complete = {_FIRST: str(start), _LAST: str(last), _EARLIER: folder.earlier(name)}
        self._write(folder, name, data, complete, done)

    def _sizes(self, prefix: str) -> dict[str, int]:
        """The sizes of the files of this export under *prefix* in order; the last file there must be one of them."""
        sizes = {one.content_id: one.size for one in self._providers.entries(self._store, self._space, prefix=prefix)}
        last = next(reversed(sizes), None)
        return {name: size for name, size in sizes.items() if _NAME.fullmatch(name, len(prefix)) or name == last}

    def _info(self, name: str, prefix: str) -> ItemInfo:
        store = self._providers[self._store]
        info = self._providers.call(lambda: store.info(self._space, name))
        if not all(info.properties.get(key, "").isdecimal() for key in (_FIRST, _LAST)):
            raise AuditExportError(
                f"{self._where(name)} was not written by the export of the audit log: move the file to a name that "
                f"does not begin with {prefix!r}"
            )
        return info

    def _exported(self, folder: _ExportFolder, file: ItemInfo) -> bytearray:
        """The content of *file*, from the log: what a provider can change is never written again with our checksum.

        Raises :class:`AuditExportError` where the provider has another content.
        """
        data, times = bytearray(_HEADING), set[str]()
        for event, line in _lines(folder.events(int(file.properties[_FIRST]) - 1, int(file.properties[_LAST]))):
            if times and len(data) + len(line) > MOST_BYTES:
                break  # a file that long was not written by the export
            data += line
            times.add(str(event.at))
        store = self._providers[self._store]

        def read() -> bytes:
            with store.open(self._space, file.content_id) as stream:
                return read_up_to(stream, max(len(data), MOST_BYTES) + 1)

        found = self._providers.call(read)
        last = _last_time(found)
        if last.isdecimal() and last not in times:
            raise self._restored_error(file)  # since then the number was assigned again
        if found != data:
            raise AuditExportError(
                f"{self._where(file.content_id)} is not what was exported: it is damaged, or was changed. Repair the "
                f"file with `millstream mill repair {arguments(self._space, file.content_id)}`; or keep a copy of it, "
                "delete the file, and export again, which writes it from the audit log"
            )
        return data

    def _write(
        self, folder: _ExportFolder, name: str, data: bytearray, properties: Mapping[str, str], done: Exported
    ) -> None:
        store, kept = self._providers[self._store], bytes(data)
        sha256 = hashlib.sha256(kept).hexdigest()
        self._providers.call(
            lambda: store.put(
                self._space, name, io.BytesIO(kept), mimetype=MIMETYPE, properties=properties, sha256=sha256
            )
        )
        folder.sizes[name] = len(kept)
        done.files += 1

    def _restored_error(self, file: ItemInfo) -> AuditExportError:
        return AuditExportError(
            f"{self._where(file.content_id)} ends with event {file.properties[_LAST]}, which the audit log lacks: the "
            "node's database was lost or restored from an older backup. Name another space in the setting "
            "mill.audit_log: the export begins anew there, and the existing files stay as they are"
        )

    def _where(self, name: str) -> str:
        return f"{name!r} in space {self._space!r} of store {self._store!r}"


def _lines(events: Iterator[AuditEvent]) -> Iterator[tuple[AuditEvent, bytes]]:
    """Each event with its line, without the heading."""
    for event in events:
        _, line = tsv_lines([event])
        yield event, line.encode()


def _last_time(data: bytes) -> str:
    """The time (microseconds) of the last event in a file; empty if it has none."""
    values = data.rstrip(b"\n").rpartition(b"\n")[2].split(b"\t")
    return values[_AT].decode("ascii", "replace") if len(values) > _AT else ""
