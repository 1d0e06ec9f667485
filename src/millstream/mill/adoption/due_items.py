"""The items that a run over a source reads, and the results: small new files in columns, all others one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millstream.mill.adoption.catalog import AdoptedItem
from millstream.mill.adoption.checksum_files import ExpectedChecksum
from millstream.mill.adoption.item_reader import ReadResult
from millstream.mill.adoption.sources import SourceEntry


class ReadJob(NamedTuple):
    """An item to be read: how it is listed, what the catalog has of it, and what lists of checksums say."""

    entry: SourceEntry
    row: AdoptedItem | None
    expected: tuple[ExpectedChecksum, ...]

    @property
    def content_id(self) -> str:
        return self.entry.content_id

    @property
    def sha256(self) -> str | None:
        """The expected checksum, if the item is listed unchanged since its adoption."""
        return self.row.sha256 if self.row is not None and is_same(self.entry, self.row) else None

    @property
    def algorithms(self) -> Sequence[str]:
        """The kinds of checksums that are needed to compare it."""
        return [one.algorithm for one in self.expected]


class NewFiles:
    """Small plain files of a folder that are new, in columns: sizes in bytes, and versions as they are listed."""

    def __init__(self) -> None:
        self.content_ids: list[str] = []
        self.sizes: list[int] = []
        self.versions: list[str] = []

    def __len__(self) -> int:
        return len(self.sizes)

    def add(self, content_id: str, size: int, version: str) -> None:
        self.content_ids.append(content_id)
        self.sizes.append(size)
        self.versions.append(version)

    def extend(self, more: NewFiles) -> None:
        self.content_ids += more.content_ids
        self.sizes += more.sizes
        self.versions += more.versions

    def take(self, places: Sequence[int]) -> NewFiles:
        """Those at *places*."""
        taken = NewFiles()
        for place in places:
            taken.add(self.content_ids[place], self.sizes[place], self.versions[place])
        return taken

    def job(self, place: int) -> ReadJob:
        """The file at *place*, to be read by itself."""
        return ReadJob(SourceEntry(self.content_ids[place], self.sizes[place], self.versions[place]), None, ())


class DueItems:
    """Items that are to be read: *files* in columns, and all else as *jobs*."""

    def __init__(self, files: NewFiles | None = None, jobs: Sequence[ReadJob] = ()) -> None:
        self.files = NewFiles() if files is None else files
        self.jobs = list(jobs)

    def __len__(self) -> int:
        return len(self.files) + len(self.jobs)

    @property
    def bytes(self) -> int:
        return sum(self.files.sizes) + sum(job.entry.size for job in self.jobs)

    def extend(self, more: DueItems) -> None:
        self.files.extend(more.files)
        self.jobs += more.jobs

    def each(self) -> Iterator[DueItems]:
        """The same, with one item in each."""
        for place in range(len(self.files)):
            yield DueItems(self.files.take([place]))
        for job in self.jobs:
            yield DueItems(None, [job])

    def all_jobs(self) -> Iterator[ReadJob]:
        """All of them, one by one."""
        yield from map(self.files.job, range(len(self.files)))
        yield from self.jobs


class ReadItems(NamedTuple):
    """The results of a read: the SHA-256 (hex) of each of *files*, and the results of jobs."""

    files: NewFiles
    sums: Sequence[str]
    results: Sequence[tuple[ReadJob, ReadResult]]


def is_same(entry: SourceEntry, row: AdoptedItem) -> bool:
    """Whether an item is listed as it was adopted."""
    return (entry.size, entry.version, entry.kind) == (row.size, row.version, row.kind)
