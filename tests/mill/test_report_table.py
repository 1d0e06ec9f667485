"""Reports of a node whose database is on a server: rows and content-addressed files, for several processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from millstream.anchoring.cas import MemoryCas
from millstream.core.cid import cid_of
from millstream.mill.errors import ReportError
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.reports import table
from millstream.mill.reports.archive import (
    ReportArchive,
    StoredReport,
    copy_reports,
    last_reports,
    reports_of,
    require_same_reports,
    verify_chain,
)
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.member_reports import new_reports, take_over
from millstream.mill.reports.report import IntegrityReport, SpaceTally, build_report, encode_report
from millstream.mill.reports.table import ReportTable


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


def report(number: int, space: str = "photos") -> IntegrityReport:
    tally = SpaceTally()
    tally.count(CheckVerdict.SUCCESS, "B0 same", number=number, size=10 * number)
    return build_report(tally, "second", space, started_at=number, ended_at=number + 1)


def chain(archive: ReportArchive) -> list[str]:
    return [one.sha256 for one in reports_of(archive, "second", "photos")]


def unchained(archive: ReportArchive) -> set[bytes]:
    return {one.data for one in archive.unchained()}


def test_reports_are_chained_and_their_files_are_named_by_their_content(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_PART", 20)
    blobs = MemoryCas()
    archive = ReportTable(engine, lambda: blobs)
    photos = "second", "photos"
    assert (archive.latest(*photos), archive.heads([photos]), archive.spaces()) == (None, {}, [])
    assert archive.lines("second", "photos") is None and verify_chain(archive, "second", "photos") is None
    lines = [f"line {number}\n" for number in range(10)]
    archive.save(report(1), lines)
    archive.save(report(2))
    archive.save(report(3, "letters"), [])
    first, second = reports_of(archive, "second", "photos")
    assert (first.previous, second.previous) == (None, first.sha256)
    assert archive.latest("second", "photos") == second and blobs.has(cid_of(encode_report(second)))
    assert verify_chain(archive, "second", "photos") == second.sha256
    assert archive.spaces() == [("second", "letters"), ("second", "photos")]
    head = archive.heads([photos, ("second", "absent"), ("first", "letters")])
    assert {key: (one.version, one.read()) for key, one in head.items()} == {photos: (2, second)}
    assert last_reports(archive, [("second", "letters"), photos]).keys() == set(archive.spaces())
    pieces = list(archive.lines("second", "photos", 1) or ())
    assert len(pieces) > 2 and b"".join(pieces).decode() == "".join(lines)
    assert archive.lines("second", "photos") is None, "the last report has no table"
    assert list(archive.lines("second", "letters") or "x") == [], "an empty one"
    blobs.overwrite(cid_of(encode_report(first)), None)
    with pytest.raises(ReportError, match="report 1 on photos in second cannot be read"):
        verify_chain(archive, "second", "photos")


def test_the_last_reports_of_many_spaces_are_found_by_one_statement(engine: sa.Engine) -> None:
    blobs, statements = MemoryCas(), list[str]()
    archive = ReportTable(engine, lambda: blobs)
    spaces = [f"s{number}" for number in range(20)]
    saved = {("second", space): archive.save(report(number, space)) for number in (1, 2) for space in spaces}
    sa.event.listen(engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    last = last_reports(archive, [*saved, ("first", "s1"), ("second", "absent")])
    assert {key: one.sha256 for key, one in last.items()} == {key: one.sha256 for key, one in saved.items()}
    assert len(statements) == 1


def test_two_processes_that_add_reports_make_one_chain(engine: sa.Engine) -> None:
    blobs = MemoryCas()
    archives = [ReportTable(engine, lambda: blobs) for _ in range(2)]

    def add(archive: ReportTable, first: int) -> None:
        for number in range(first, first + 10):
            archive.save(report(number))

    threads = [threading.Thread(target=add, args=(archive, 1 + 10 * n)) for n, archive in enumerate(archives)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verify_chain(archives[0], "second", "photos") is not None
    assert sorted(one.started_at for one in reports_of(archives[0], "second", "photos")) == list(range(1, 21))


def test_reports_are_moved_to_a_database_and_back(engine: sa.Engine, tmp_path: Path) -> None:
    here, archive = ReportFolder(tmp_path / "here"), ReportTable(engine, MemoryCas)
    for number in range(1, 4):
        here.save(report(number), [f"{number}\n"] if number != 2 else None)
    here.save(report(9, "a/ö"))
    assert copy_reports(here, archive) == copy_reports(here, archive) == 4
    assert verify_chain(archive, "second", "photos") == verify_chain(here, "second", "photos")
    archive.save(report(4), ["4\n"])
    back = ReportFolder(tmp_path / "back")
    assert copy_reports(archive, back) == 5 and copy_reports(archive, here) == 5
    for folder in (here, back):
        found = folder.folder("second", "photos")
        assert sorted(path.name for path in found.glob("*.tsv")) == [f"00000{number}.tsv" for number in (1, 3, 4)]
        assert (found / "000004.tsv").read_text() == "4\n" and (found / "000004.html").exists()
        assert verify_chain(folder, "second", "photos") == verify_chain(archive, "second", "photos")
    archive.add_unchained(foreign := encode_report(report(8)))
    target = ReportTable(sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}"), MemoryCas)
    assert copy_reports(archive, back) == copy_reports(archive, back) == copy_reports(back, target) == 6
    assert unchained(archive) == unchained(back) == unchained(target) == {foreign}
    assert back.spaces() == target.spaces() == archive.spaces()
    other = ReportFolder(tmp_path / "other")
    other.save(report(7))
    for check in (copy_reports, require_same_reports):
        check(back, archive)
        with pytest.raises(ReportError, match=r"different reports of the same number: .* renaming its folder `repo"):
            check(other, archive)
    one = next(iter(other.stored("second", "photos")))
    with pytest.raises(ReportError, match=r"another process added report 1 on photos in second .* repeat the command"):
        archive.add("second", "photos", one, None)


def test_reports_in_folders_of_members_are_taken_over_once_as_a_chain_or_beside_it(
    engine: sa.Engine, tmp_path: Path
) -> None:
    blobs, members = MemoryCas(), [tmp_path / "one", tmp_path / "other"]
    table, unanchored = ReportTable(engine, lambda: blobs), list[str]()
    saved = [
        [ReportFolder(root).save(report(10 * n + number), [f"{number}\n"]) for number in (1, 2)]
        for n, root in enumerate(members)
    ]

    def take(root: Path) -> int:
        return take_over(root, table, lambda cid: cid not in unanchored)

    unanchored.append(cid_of(encode_report(saved[1][1])))
    assert [take(root) for root in members] == [2, 1]
    assert chain(table) == [one.sha256 for one in saved[0]], "the chain of the first member"
    assert b"".join(table.lines("second", "photos") or ()) == b"2\n"
    assert unchained(table) == {encode_report(saved[1][0])}, "the ledger does not have the other one"
    table.save(report(31))
    late = ReportFolder(members[0]).save(report(32))
    assert [take(root) for root in members] == [1, 0], "the program of the early release had gone on"
    assert encode_report(late) in unchained(table)
    assert verify_chain(table, "second", "photos") is not None
    assert [one.started_at for one in reports_of(table, "second", "photos")] == [1, 2, 31]


def test_an_interrupted_take_over_resumes_and_reports_stay_one_chain(engine: sa.Engine, tmp_path: Path) -> None:
    blobs, folder = MemoryCas(), ReportFolder(tmp_path)
    table = ReportTable(engine, lambda: blobs)
    saved = [folder.save(report(number)) for number in range(1, 6)]
    looked_up = list[str]()

    def is_anchored(cid: str) -> bool:
        looked_up.append(cid)
        return True

    with engine.begin() as connection:
        refusal = "BEFORE INSERT ON mill_reports WHEN NEW.number = 4 BEGIN SELECT RAISE(ABORT, 'refused'); END"
        connection.execute(sa.text(f"CREATE TRIGGER refusal {refusal}"))
    with pytest.raises(sa.exc.IntegrityError, match="refused"):
        take_over(tmp_path, table, is_anchored)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TRIGGER refusal"))
    assert chain(table) == [one.sha256 for one in saved[:3]]
    assert any(new_reports(tmp_path, table)) and take_over(tmp_path, table, is_anchored) == 2
    assert chain(table) == [one.sha256 for one in saved] and not unchained(table)
    assert take_over(tmp_path, table, is_anchored) == 0 and len(looked_up) == 6, "no ledger is read"
    (tmp_path / "taken-over.json").write_bytes(b'{"second": {"pho')
    assert any(new_reports(tmp_path, table)) and take_over(tmp_path, table, is_anchored) == 0
    assert not any(new_reports(tmp_path, table)) and not unchained(table) and len(looked_up) == 6


def test_a_report_that_is_not_in_the_ledger_yet_is_taken_over_later(engine: sa.Engine, tmp_path: Path) -> None:
    blobs, folder = MemoryCas(), ReportFolder(tmp_path)
    table = ReportTable(engine, lambda: blobs)
    saved = [folder.save(report(number)) for number in (1, 2, 3)]
    anchored = {cid_of(encode_report(one)) for one in saved[:2]}
    assert take_over(tmp_path, table, anchored.__contains__) == 2 and any(new_reports(tmp_path, table))
    anchored.add(cid_of(encode_report(saved[2])))
    assert take_over(tmp_path, table, anchored.__contains__) == 1 and not any(new_reports(tmp_path, table))
    saved += [folder.save(report(number)) for number in (4, 5)]
    anchored.add(cid_of(encode_report(saved[4])))  # the process of the one before was killed
    assert [take_over(tmp_path, table, anchored.__contains__) for _ in range(2)] == [1, 0]
    assert chain(table) == [one.sha256 for one in saved[:3]] and unchained(table) == {encode_report(saved[4])}
    anchored.add(cid_of(encode_report(saved[3])))
    assert take_over(tmp_path, table, anchored.__contains__) == 1
    assert chain(table) == [one.sha256 for one in saved] and not unchained(table), "the last one is no longer outside"


def test_reports_are_taken_over_again_after_a_restore_of_an_older_database(engine: sa.Engine, tmp_path: Path) -> None:
    blobs, folder, members = MemoryCas(), ReportFolder(tmp_path / "one"), [tmp_path / "one", tmp_path / "other"]
    table = ReportTable(engine, lambda: blobs)
    saved = [folder.save(report(number)) for number in (1, 2, 3)]
    other = [ReportFolder(members[1]).save(report(number)) for number in (7, 8)]
    assert [take_over(root, table, lambda _: True) for root in members] == [3, 2]
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM mill_reports WHERE number > 1"))
        connection.execute(sa.text("DELETE FROM mill_unchained_reports"))
    assert len([*new_reports(members[0], table)]) == 3
    assert [take_over(root, table, lambda _: True) for root in members] == [2, 2]
    assert chain(table) == [one.sha256 for one in saved] and unchained(table) == set(map(encode_report, other))
    assert not any(any(new_reports(root, table)) for root in members)


@pytest.mark.parametrize("count", [2, 5])
def test_two_processes_that_take_one_folder_over_at_once_make_one_chain(
    engine: sa.Engine, tmp_path: Path, count: int
) -> None:
    blobs, folder = MemoryCas(), ReportFolder(tmp_path)
    saved = [folder.save(report(number)) for number in range(1, 6)]
    anchored = {cid_of(encode_report(one)) for one in saved[:count]}

    class Interleaved(ReportTable):
        """Another process takes reports over between the first two queries."""

        def last(self, store: str, space: str) -> StoredReport | None:
            found = super().last(store, space)
            self._other_process()
            return found

        def cids(self, store: str, space: str) -> frozenset[str]:
            found = super().cids(store, space)
            self._other_process()
            return found

        def _other_process(self) -> None:
            if not chain(other):
                take_over(tmp_path, other, anchored.__contains__)

    other = ReportTable(engine, lambda: blobs)
    assert take_over(tmp_path, Interleaved(engine, lambda: blobs), lambda _: True) == 5 - count
    assert chain(other) == [one.sha256 for one in saved] and not unchained(other)


def test_a_report_that_could_not_be_read_again_is_not_kept(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = ReportTable(engine, MemoryCas)
    first = archive.save(report(1))
    monkeypatch.setattr(table, "_MOST_BYTES", len(encode_report(first)) + 100)
    with pytest.raises(ReportError, match="the report on photos in second is too large to be kept"):
        archive.save(msgspec.structs.replace(report(2), notes=("x" * 100,)))
    assert archive.save(report(2)).previous == first.sha256
