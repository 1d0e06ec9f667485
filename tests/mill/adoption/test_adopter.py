"""Adoption: what is read, what is recorded, and what people are told."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from adopted_folder import SPACE, SourceFolder

from millstream.mill.adoption import adopter
from millstream.mill.adoption.adopted_store import AdoptedStore
from millstream.mill.adoption.adopter import GROUP, READ_PERIOD, Adopter, NotAdoptedError, ReadExtent
from millstream.mill.adoption.adoption_run import NOT_READ, AdoptionRun
from millstream.mill.adoption.due_items import DueItems, NewFiles, ReadItems
from millstream.mill.adoption.item_reader import ReadResult
from millstream.mill.adoption.unknown_copies import record_source
from millstream.mill.manifest import ManifestEvent
from millstream.stores import Entry, FolderStore, ItemNotFoundError, StoreUnavailableError
from millstream.stores.folder.listing import FolderColumns
from millstream.stores.protocol import EntryKind

DAY = 24 * 3600


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class AbsentMindedReader:
    """Stands for machines on which the source is not mounted: it finds nothing."""

    def read(self, space: str, due: Iterator[DueItems]) -> Iterator[ReadItems]:
        for some in due:
            yield ReadItems(NewFiles(), (), [(job, ReadResult()) for job in some.all_jobs()])


def test_p8_what_a_reader_does_not_find_has_not_vanished_if_it_is_there(folder: SourceFolder) -> None:
    folder.write("gone")
    folder.write("there")
    folder.adopt()
    for name in ("gone", "there", "new"):
        folder.write(name, b"another version")

    class LateReader(AbsentMindedReader):
        def read(self, space: str, due: Iterator[DueItems]) -> Iterator[ReadItems]:
            for read in super().read(space, due):
                (folder.root / "gone").unlink(missing_ok=True)
                yield read

    found = Adopter(folder.target, reader=LateReader()).adopt(SPACE)
    assert (found.vanished, folder.item("there").vanished_at) == (1, None)
    assert folder.findings() == [("new", "changes while it is read"), ("there", "changes while it is read")]
    assert folder.adopt().findings == 0


def test_a_source_of_which_nothing_is_adopted_and_that_is_not_there_has_no_empty_listing(folder: SourceFolder) -> None:
    adopted = AdoptedStore(folder.store, "here", folder.catalog)
    assert adopted.entries(SPACE) == adopted.entries("other") == []
    folder.root.rmdir()
    with pytest.raises(StoreUnavailableError):
        adopted.entries(SPACE)


def test_a_query_of_a_part_of_what_is_adopted_asks_the_source_nothing(folder: SourceFolder) -> None:
    asked = list[str]()

    class Source(FolderStore):
        def entries(self, space: str, **more: Any) -> Sequence[Entry]:
            asked.append(space)
            return super().entries(space, **more)

    adopted = AdoptedStore(Source(folder.root, space=SPACE), "here", folder.catalog)
    assert adopted.entries(SPACE, prefix="a/") == adopted.entries(SPACE, after="a") == asked == []
    assert adopted.entries(SPACE) == [] and asked == [SPACE]


def test_what_is_new_is_read_once_and_recorded_with_its_checksum(folder: SourceFolder) -> None:
    folder.write("a.txt", b"one")
    folder.write("sub/b.txt", b"two")
    found = folder.adopt()
    assert (found.listed, found.added, found.read, found.read_bytes) == (2, 2, 2, 6)
    item, row = folder.item("a.txt"), folder.manifest.get("here", SPACE, "a.txt")
    assert row is not None
    assert (item.sha256, item.size, item.origin, item.mimetype) == (sha256(b"one"), 3, "computed", "text/plain")
    assert (row.sha256, row.size, row.modified) == (item.sha256, 3, item.adopted_at)
    again = folder.adopt()
    assert (again.listed, again.added, again.changed, again.read) == (2, 0, 0, 0)


def test_odd_names_links_and_empty_folders_are_adopted(folder: SourceFolder) -> None:
    for name in (".hidden", "50%", "a b\n"):
        folder.write(name)
    (folder.root / "empty").mkdir()
    (folder.root / "link").symlink_to("nowhere")
    assert folder.adopt().added == 5
    assert folder.item("link").kind == "symlink"
    assert folder.item("link").sha256 == sha256(b"nowhere")
    assert (folder.item("empty/").kind, folder.item("empty/").size) == ("folder", 0)


def test_another_time_or_size_is_a_new_version(folder: SourceFolder) -> None:
    folder.write("time", b"one", at=10**18)
    folder.write("size", b"one", at=10**18)
    folder.write("touched", b"one", at=10**18)
    folder.adopt()
    before = folder.item("touched").adopted_at
    folder.write("time", b"two", at=10**18 + 1)
    folder.write("size", b"longer", at=10**18)
    folder.write("touched", b"one", at=2 * 10**18)
    found = folder.adopt()
    assert (found.changed, found.read, found.suspected) == (2, 3, 0)
    assert {name: folder.item(name).sha256 for name in ("time", "size")} == {
        "time": sha256(b"two"), "size": sha256(b"longer"),
    }  # fmt: skip
    row = folder.manifest.get("here", SPACE, "time")
    assert row is not None and row.sha256 == sha256(b"two")
    assert folder.item("touched").adopted_at == before


def test_other_bytes_under_the_same_time_and_size_are_suspected_rot_and_never_adopted(folder: SourceFolder) -> None:
    folder.write("a", b"good")
    folder.adopt()
    folder.rot("a", b"evil")
    assert folder.adopt().suspected == 0  # nobody has read it
    assert folder.adopt(ReadExtent.ALL).suspected == 1
    item, row = folder.item("a"), folder.manifest.get("here", SPACE, "a")
    assert (item.sha256, item.suspected) == (sha256(b"good"), sha256(b"evil"))
    assert row is not None and row.sha256 == sha256(b"good")
    assert folder.findings() == [("a", "suspected rot")]
    assert folder.adopt().suspected == 1  # each run reads it again
    folder.rot("a", b"good")
    assert folder.adopt().findings == 0
    assert folder.item("a").suspected is None


def test_accepted_bytes_are_a_new_version(folder: SourceFolder) -> None:
    folder.write("a", b"good")
    folder.adopt()
    folder.rot("a", b"evil")
    folder.adopt(ReadExtent.ALL)
    accepted = Adopter(folder.target).accept(SPACE, "a")
    row = folder.manifest.get("here", SPACE, "a")
    assert (accepted.sha256, accepted.suspected) == (sha256(b"evil"), None)
    assert row is not None and row.sha256 == sha256(b"evil")
    assert folder.adopt(ReadExtent.ALL).findings == 0
    with pytest.raises(ItemNotFoundError):
        Adopter(folder.target).accept(SPACE, "missing")


def test_what_cannot_be_read_cannot_be_accepted(folder: SourceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a")

    def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("the disk is gone")

    monkeypatch.setattr(folder.store, "open", fail)
    with pytest.raises(NotAdoptedError, match="the disk is gone"):
        Adopter(folder.target).accept(SPACE, "a")


def test_a_share_is_read_again_so_that_everything_is_within_30_days(folder: SourceFolder) -> None:
    for number in range(60):
        folder.write(f"{number:02d}")
        folder.adopt()
    read = []
    for _ in range(30):
        folder.clock.advance(DAY)
        read.append(folder.adopt().read)
    assert sum(read) >= 58 and max(read) <= 3
    oldest = folder.catalog.totals("here", SPACE).oldest_read
    assert oldest is not None and folder.clock.now() - oldest < READ_PERIOD + 60 * 10**6


def test_after_a_long_pause_everything_is_read(folder: SourceFolder) -> None:
    for number in range(10):
        folder.write(str(number))
    folder.adopt()
    folder.clock.advance(31 * DAY)
    assert folder.adopt().read == 10


def test_vanished_items_are_kept_and_come_back_without_being_read(folder: SourceFolder) -> None:
    folder.write("a")
    folder.write("b", b"other")
    folder.adopt()
    (folder.root / "a").rename(folder.root.parent / "kept")
    assert (folder.adopt().vanished, folder.adopt().vanished) == (1, 1)
    assert folder.item("a").vanished_at is not None
    row = folder.manifest.get("here", SPACE, "a")
    assert row is not None and not row.deleted
    (folder.root.parent / "kept").rename(folder.root / "a")
    found = folder.adopt()
    assert (found.returned, found.vanished, found.read) == (1, 0, 0)
    assert folder.item("a").vanished_at is None


@pytest.mark.parametrize("reading", [ReadExtent.SHARE, ReadExtent.ALL])
@pytest.mark.parametrize("ahead", [0, 3600_000_000])
def test_p8_an_item_that_is_back_is_live_where_recording_its_deletion_was_interrupted(
    folder: SourceFolder, reading: ReadExtent, ahead: int
) -> None:
    folder.write("a")
    folder.adopt()
    (folder.root / "a").rename(folder.root.parent / "kept")
    folder.adopt()
    tombstone = ManifestEvent("here", SPACE, "a", folder.clock.now() + ahead, deleted=True)
    folder.manifest.writer.record([tombstone])  # killed before the catalog forgot the item
    (folder.root.parent / "kept").rename(folder.root / "a")
    assert folder.adopt(reading).returned == 1
    row = folder.manifest.get("here", SPACE, "a")
    assert row is not None and (row.deleted, row.sha256) == (False, folder.item("a").sha256)


def test_p8_an_adopted_item_whose_tombstone_is_of_a_clock_that_is_ahead_is_recorded_again(folder: SourceFolder) -> None:
    folder.manifest.writer.record([ManifestEvent("here", SPACE, "a", folder.clock.now() + 10**12, deleted=True)])
    folder.write("a")
    folder.adopt()
    assert record_source(folder.target, SPACE) == 1
    row = folder.manifest.get("here", SPACE, "a")
    assert row is not None and (row.deleted, row.sha256) == (False, folder.item("a").sha256)
    assert record_source(folder.target, SPACE) == 0


def test_nothing_vanishes_in_a_folder_that_cannot_be_listed(
    folder: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("shut/a")
    folder.write("shutter")
    folder.adopt()
    (folder.root / "shutter").unlink()
    unlisted = FolderColumns([], [], [], [])
    unlisted.add(Entry("shut/", 0, kind=EntryKind.UNREADABLE))
    monkeypatch.setattr(folder.store, "columns", lambda *_, **__: [unlisted])
    assert folder.adopt().vanished == 1
    assert folder.findings() == [("shut/", "unreadable")]
    assert folder.item("shut/a").vanished_at is None


def unlisted(folder: SourceFolder, name: str, *others: str) -> list[FolderColumns]:
    """A listing of *others*, as it is where the folder *name* cannot be listed."""
    columns = FolderColumns([], [], [], [])
    for other in others:
        status = (folder.root / other).stat()
        columns.add(Entry(other, status.st_size, version=str(status.st_mtime_ns)))
    columns.add(Entry(name, 0, kind=EntryKind.UNREADABLE))
    return [columns]


@pytest.mark.parametrize("trouble", ["unlisted folder", "unreadable file", "unreadable while it is read"])
def test_bytes_that_did_not_match_a_list_are_not_adopted_after_a_run_that_could_not_read_them(
    folder: SourceFolder, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    folder.write("sub/bad", b"evil")
    folder.write("sub/good", b"good")
    listed = f"{sha256(b'good')}  sub/bad\n"
    assert folder.adopt(listed=listed).findings == 1
    with monkeypatch.context() as patch:
        if trouble == "unreadable while it is read":

            def fail(*_: Any, **__: Any) -> Any:
                raise StoreUnavailableError("the disk is gone")

            patch.setattr(folder.store, "open", fail)
            folder.adopt(listed=listed)
        else:
            name = "sub/" if trouble == "unlisted folder" else "sub/bad"
            patch.setattr(folder.store, "columns", lambda *_, **__: unlisted(folder, name))
            folder.adopt()
    assert ("sub/bad", "checksum mismatch") in folder.findings()
    assert folder.adopt().findings == 1
    assert folder.findings() == [("sub/bad", "checksum mismatch")]
    assert folder.catalog.get_many("here", SPACE, ["sub/bad"]) == {}


def test_names_of_a_list_in_a_folder_that_cannot_be_listed_are_not_missing(
    folder: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("sub/a")
    folder.write("b")
    monkeypatch.setattr(folder.store, "columns", lambda *_, **__: unlisted(folder, "sub/", "b"))
    folder.adopt(listed=f"{sha256(b'grain')}  sub/a\n{sha256(b'grain')}  gone\n")
    assert folder.findings() == [("gone", "missing from the source"), ("sub/", "unreadable")]


def test_a_rename_is_recognised_by_its_checksum(folder: SourceFolder) -> None:
    folder.write("before", b"same bytes")
    folder.write("other", b"different")
    folder.adopt()
    (folder.root / "before").rename(folder.root / "after")
    found = folder.adopt()
    assert (found.added, found.vanished, found.moved) == (0, 1, 1)
    assert folder.item("before").renamed_to == "after"


def renames(folder: SourceFolder) -> dict[str, str | None]:
    return {item.content_id: item.renamed_to for item in folder.catalog.vanished("here", SPACE)}


@pytest.mark.parametrize(
    ("data", "gone", "new", "expected"),
    [
        (b"equal", ["b", "a"], ["d", "c"], {"a": "c", "b": "d"}),
        (b"equal", ["a", "b"], ["c"], {"a": "c", "b": None}),
        (b"equal", ["a"], ["d", "c"], {"a": "c"}),
        (b"", ["a"], ["c"], {"a": "c"}),
        (b"", ["a", "b"], ["c"], {"a": None, "b": None}),
        (b"", ["a"], ["c", "d"], {"a": None}),
        (b"odd", ["50% \u00e4.jpg"], [".a\u0308 %2E"], {"50% \u00e4.jpg": ".a\u0308 %2E"}),
    ],
)
def test_equal_files_that_were_renamed_are_paired_one_to_one(
    folder: SourceFolder, data: bytes, gone: list[str], new: list[str], expected: dict[str, str | None]
) -> None:
    for name in gone:
        folder.write(name, data)
    folder.write("stays", data)
    folder.adopt()
    for name in gone:
        (folder.root / name).unlink()
    for name in new:
        folder.write(name, data)
    paired = sum(name is not None for name in expected.values())
    assert (folder.adopt().moved, folder.adopt().moved) == (paired, paired)
    assert renames(folder) == expected


def test_a_rename_whose_new_name_an_interrupted_run_read_is_recognised(
    folder: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("before")
    folder.write("other", b"different")
    folder.adopt()
    (folder.root / "before").rename(folder.root / "after")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AdoptionRun, "finish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        folder.adopt()
    found = folder.adopt()
    assert (found.read, found.moved, renames(folder)) == (0, 1, {"before": "after"})


def test_a_file_that_is_renamed_twice_is_followed_to_its_last_name(folder: SourceFolder) -> None:
    folder.write("a")
    folder.adopt()
    for before, after in (("a", "b"), ("b", "c")):
        (folder.root / before).rename(folder.root / after)
        folder.adopt()
    assert renames(folder) == {"a": "c", "b": "c"}
    (folder.root / "c").write_bytes(b"edited")
    folder.adopt()
    assert renames(folder) == {"a": None, "b": None}


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_file_is_renamed_to_a_name_that_another_file_had(folder: SourceFolder, is_gone: bool) -> None:
    folder.write("old", b"old bytes")
    folder.write("before")
    folder.adopt()
    if is_gone:
        (folder.root / "old").unlink()
        folder.adopt()
    (folder.root / "before").rename(folder.root / "old")
    assert (folder.adopt().moved, renames(folder)) == (1, {"before": "old"})


def test_special_files_are_named_and_forbid_nothing_else(folder: SourceFolder) -> None:
    os.mkfifo(folder.root / "pipe")
    folder.write("a")
    assert folder.adopt().added == 1
    assert folder.findings() == [("pipe", "not supported")]
    (folder.root / "pipe").unlink()
    assert folder.adopt().findings == 0


def test_an_interrupted_adoption_resumes(folder: SourceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2 * GROUP + 10):
        folder.write(f"{number:04d}", b"")
    hashed = folder.store.hash_versions

    def hash_some(versions: Sequence[tuple[str, int, str]]) -> Sequence[str | None]:
        if any(content_id > f"{GROUP + 20:04d}" for content_id, _, _ in versions):
            raise KeyboardInterrupt
        return hashed(versions)

    monkeypatch.setattr(folder.store, "hash_versions", hash_some)
    with pytest.raises(KeyboardInterrupt):
        folder.adopt()
    assert folder.catalog.totals("here", SPACE).items == GROUP
    monkeypatch.undo()
    assert folder.adopt().read == GROUP + 10


def test_checksums_of_a_list_are_compared_and_recorded_as_theirs(folder: SourceFolder) -> None:
    folder.write("good", b"good")
    folder.write("bad", b"evil")
    md5 = hashlib.md5(b"good", usedforsecurity=False).hexdigest()
    text = f"{md5}  good\n{md5}  bad\n{md5}  gone\n"
    found = folder.adopt(listed=text)
    assert (found.added, found.findings) == (1, 2)
    assert (folder.item("good").origin, folder.item("good").sums) == ("listed", {"md5": md5})
    assert folder.findings() == [("bad", "checksum mismatch"), ("gone", "missing from the source")]
    assert folder.catalog.get_many("here", SPACE, ["bad"]) == {}
    assert folder.manifest.get("here", SPACE, "bad") is None


def test_what_did_not_match_a_list_stays_a_finding_until_it_changes_or_is_accepted(folder: SourceFolder) -> None:
    folder.write("bad", b"evil")
    folder.write("worse", b"evil")
    md5 = hashlib.md5(b"good", usedforsecurity=False).hexdigest()
    folder.adopt(listed=f"{md5}  bad\n{md5}  worse\n{md5}  gone\n")
    assert folder.adopt(ReadExtent.ALL).findings == 3
    folder.write("gone", b"good")
    Adopter(folder.target).accept(SPACE, "worse")
    folder.write("bad", b"good", at=10**18)
    assert folder.adopt().findings == 0
    assert folder.item("worse").sha256 == sha256(b"evil")


def test_a_list_that_comes_later_is_compared_with_what_was_adopted(folder: SourceFolder) -> None:
    folder.write("a", b"evil")
    folder.adopt()
    wrong = sha256(b"good")
    assert folder.adopt(listed=f"{wrong}  a\n").findings == 1
    assert folder.adopt(listed=f"{sha256(b'evil')}  a\n").findings == 0
    assert folder.item("a").origin == "listed"


def test_a_second_list_is_compared_with_what_the_first_one_confirmed(folder: SourceFolder) -> None:
    folder.write("a", b"good")
    good, md5 = sha256(b"good"), hashlib.md5(b"good", usedforsecurity=False).hexdigest()
    assert folder.adopt(listed=f"{good}  a\n").findings == 0
    assert folder.adopt(listed=f"{'0' * 32}  a\n").findings == 1
    assert folder.adopt().findings == 1
    assert folder.adopt(listed=f"{md5}  a\n").findings == 0
    assert folder.item("a").sums == {"md5": md5}
    assert folder.adopt(listed=f"{md5}  a\n{good}  a\n").read == 0
    assert folder.adopt(listed=f"{sha256(b'evil')}  a\n").findings == 1


def test_a_plan_reads_nothing(folder: SourceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a", b"old", at=10**18)
    folder.write("same")
    folder.adopt()
    folder.write("a", b"newer", at=2 * 10**18)
    folder.write("b", b"new")
    monkeypatch.setattr(folder.store, "open", None)
    found = folder.adopt(ReadExtent.NONE)
    assert (found.added, found.changed, found.unread, found.unread_bytes, found.read) == (1, 1, 2, 8, 0)
    assert folder.item("b").sha256.startswith(NOT_READ)


def test_a_source_that_is_not_there_is_an_error_and_nothing_vanishes(folder: SourceFolder) -> None:
    folder.write("a")
    folder.adopt()
    shutil.move(folder.root, folder.root.parent / "away")
    with pytest.raises(StoreUnavailableError):
        folder.adopt()
    assert folder.item("a").vanished_at is None


def test_nothing_is_written_to_the_source(folder: SourceFolder) -> None:
    folder.write("sub/a")
    before = {path: path.stat().st_mtime_ns for path in [folder.root, *folder.root.rglob("*")]}
    folder.adopt()
    folder.adopt(ReadExtent.ALL)
    assert {path: path.stat().st_mtime_ns for path in [folder.root, *folder.root.rglob("*")]} == before


def test_groups_that_are_recorded_together_have_few_bytes(
    folder: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopter, "GROUP_BYTES", 10)
    for number in range(5):
        folder.write(f"{number}", b"four")
    folder.write("9", b"more than a group")
    seen: list[int] = []
    settle = AdoptionRun.settle
    monkeypatch.setattr(AdoptionRun, "settle", lambda run, some: (seen.append(len(some.files)), settle(run, some)))
    assert folder.adopt().read == 6
    assert seen == [2, 2, 1, 1]


def test_files_that_are_read_together_are_recorded_like_those_that_are_read_alone(
    folder: SourceFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a.tar.gz", "b/50%", "b/c\n.TXT", "b/.hidden.jpg", "empty", "\u00e9%FF.pdf", "old", "z.unknown")
    for name in names:
        folder.write(name, b"" if name == "empty" else name.encode(), at=-5 if name == "old" else None)
    (folder.root / "nothing").mkdir()
    (folder.root / "link").symlink_to("empty")
    found = folder.adopt()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    alone = SourceFolder(folder.root, engine)
    monkeypatch.setattr(alone.store, "hash_versions", lambda versions: [None] * len(versions))
    assert alone.adopt() == found and found.added == len(names) + 2
    for one, other in ((folder.catalog, alone.catalog), (folder.manifest, alone.manifest)):
        assert list(one.scan("here", SPACE)) == list(other.scan("here", SPACE))
    engine.dispose()


def test_what_a_manifest_knows_to_be_later_is_kept_when_files_are_adopted(folder: SourceFolder) -> None:
    later = ManifestEvent("here", SPACE, "a", folder.clock.now() + 10**12, "0" * 64, 1)
    folder.manifest.writer.record([later])
    folder.write("a")
    assert folder.adopt().added == 1
    row = folder.manifest.get("here", SPACE, "a")
    assert row is not None and (row.sha256, row.modified) == (later.sha256, later.at)


@pytest.mark.parametrize("moment", ["while it is listed", "while the last items are read"])
def test_p8_nothing_has_vanished_from_a_disk_that_was_unmounted_during_the_run(
    folder: SourceFolder, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr("millstream.stores.folder.listing.mount_of", lambda handle: (os.fstat(handle).st_ino, ""))
    for number in range(20):
        folder.write(f"{number:02d}/file", b"%d" % number)
    folder.adopt()
    for number in range(20):
        folder.write(f"{number:02d}/file", b"another version")

    class Unmounting(AbsentMindedReader):
        def read(self, space: str, due: Iterator[DueItems]) -> Iterator[ReadItems]:
            some = iter([next(due)] if moment == "while it is listed" else list(due))
            folder.root.rename(folder.root.with_name("aside"))
            folder.root.mkdir()
            yield from super().read(space, chain(some, due))

    with pytest.raises(StoreUnavailableError, match="unmounted"):
        Adopter(folder.target, reader=Unmounting()).adopt(SPACE)
    assert list(folder.catalog.vanished("here", SPACE)) == []
