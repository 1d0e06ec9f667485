"""The audit log as files: every event once and in order, files of 10 MiB, whatever dies, comes late, or is damaged."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.mill.audit import export as audit_export
from millstream.mill.audit.audit_log import COLUMNS, AuditLog, tsv_lines
from millstream.mill.audit.export import AuditExport, AuditExportError
from millstream.stores import LocalStore, Store, StoreUnavailableError, all_entries
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox
from millstream.stores.wrapper import StoreCall
from millstream.testing.damage import flip_bit
from millstream.testing.faulty_store import FaultyStore, LostReplyStore

FOLDER = "acme/1/s"


class CountedStore(FaultyStore):
    """Counts the calls of *store* by method."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()

    def before(self, call: StoreCall) -> None:
        self.calls[call.method] += 1


class Office:
    """An audit log and its outbox, and a local store "2" to which it is exported, into the space "audits"."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.store = world, LocalStore(folder)
        world.stores["2"] = self.store
        self.log, self.outbox = AuditLog(world.engine), AuditOutbox(world.engine, world.clock)

    def happen(self, *names: str, store: str = "1", space: str = "s", **more: Any) -> list[AuditEvent]:
        """Events that were begun, and are on their way."""
        wanted = [
            AuditEvent(
                AuditAction.ADD_CONTENT, "ann", 0, "acme", store, "file", space, name, "ab" * 32, 5, "text/plain"
            )
            for name in names
        ]
        return [self.outbox.begin(_with(event, **more)).event for event in wanted]

    def process(self, events: list[AuditEvent]) -> None:
        self.log.append(events)
        self.outbox.remove([event.number for event in events])

    def export(self) -> tuple[int, int]:
        done = AuditExport(self.world.providers, self.log, self.outbox, "2", "audits").run()
        return done.events, done.files

    def count_calls(self) -> Counter[str]:
        """The calls of the store from now on, by method."""
        counted = CountedStore(self.store)
        self.world.stores["2"] = counted
        return counted.calls

    def files(self) -> dict[str, list[str]]:
        found = {}
        for entry in all_entries(self.store, "audits"):
            with self.store.open("audits", entry.content_id) as file:
                found[entry.content_id] = file.read().decode().splitlines(keepends=True)
        return found

    def exported(self) -> list[str]:
        return [line for lines in self.files().values() for line in lines[1:]]


def _with(event: AuditEvent, **more: Any) -> AuditEvent:
    from msgspec.structs import replace

    return replace(event, **more)


@pytest.fixture
def office(world: Any, tmp_path: Path) -> Office:
    return Office(world, tmp_path / "store")


def test_every_event_is_a_line_of_fourteen_values_and_is_exported_once(office: Office) -> None:
    events = office.happen("a", "a", "with\ttab\nand line", properties={"note": "x\ty"})
    office.process(events)
    assert office.export() == (3, 1)
    assert office.export() == (0, 0)
    ((name, lines),) = office.files().items()
    assert name == f"{FOLDER}/{events[0].number:012d}.tsv"
    assert lines == list(tsv_lines(events))
    assert {line.count("\t") for line in lines} == {len(COLUMNS) - 1} == {13}


def test_the_newest_file_grows_until_it_is_full_and_then_another_begins(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "MOST_BYTES", 3000)
    every: list[AuditEvent] = []
    for count in (3, 1, 40, 7):
        every += office.happen(*[f"item {number}" for number in range(count)])
        office.process(every[-count:])
        assert office.export()[0] == count
    assert office.exported() == list(tsv_lines(every))[1:]
    sizes = [sum(map(len, lines)) for lines in office.files().values()]
    assert len(sizes) > 2
    assert all(2800 < size <= 3000 for size in sizes[:-1])


def test_files_that_were_deleted_are_written_again_as_they_were(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "MOST_BYTES", 1000)
    for number in range(36):
        office.process(office.happen(f"item {number}"))
        office.process(office.happen(f"other {number}", space="t"))
        office.export()
    before = office.files()
    own = [name for name in before if name.startswith(FOLDER)]
    assert len(own) > 5
    for gone in ([own[0]], [own[2], own[3], own[-2]], own[:-1], own):
        for name in gone:
            office.store.delete("audits", name)
        assert office.export() == (sum(len(before[name]) - 1 for name in gone), len(gone))
        assert office.files() == before
    assert office.export() == (0, 0)
    assert max(sum(map(len, lines)) for lines in before.values()) <= 1000


def test_a_run_requests_the_metadata_of_one_file_however_many_were_exported(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "MOST_BYTES", 1000)
    office.process(office.happen(*[f"item {number}" for number in range(36)]))
    office.export()
    own = list(office.files())
    assert len(own) > 5
    calls = office.count_calls()
    assert office.export() == (0, 0)
    assert calls == {"create_space": 1, "has_space": 1, "entries": 1, "info": 1}
    calls.clear()
    office.process(office.happen(*[f"new {number}" for number in range(24)]))
    written = office.export()[1]
    assert written > 2
    assert calls == {"create_space": 1, "has_space": 1, "entries": 1, "info": 1, "open": 1, "put": written}
    calls.clear()
    office.store.delete("audits", own[1])
    assert office.export()[1] == 1
    assert calls["info"] == len(office.files()) - 1
    calls.clear()
    assert office.export() == (0, 0)
    assert calls["info"] == 1


def test_an_older_file_that_was_replaced_by_another_program_is_found(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "MOST_BYTES", 1000)
    office.process(office.happen(*[f"item {number}" for number in range(36)]))
    office.export()
    office.store.put("audits", list(office.files())[1], io.BytesIO(b"mine"))
    with pytest.raises(AuditExportError, match="was not written by the export of the audit log"):
        office.export()


def test_files_of_an_export_that_did_not_record_the_earlier_ones_are_continued(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_export, "MOST_BYTES", 1000)
    office.process(office.happen(*[f"item {number}" for number in range(36)]))
    office.export()
    before = office.files()
    for name in before:
        kept = office.store.info("audits", name).properties
        names = ("first-event", "last-event")
        office.store.set_properties("audits", name, {one: kept[one] for one in names})
    office.store.delete("audits", list(before)[2])
    assert office.export()[1] == 1
    assert office.files() == before
    office.process(office.happen("new"))
    assert office.export()[0] == 1
    calls = office.count_calls()
    assert office.export() == (0, 0)
    assert calls["info"] == 1


def test_a_file_of_another_program_before_the_newest_one_is_left_alone(office: Office) -> None:
    office.process(office.happen("a"))
    office.export()
    office.store.put("audits", f"{FOLDER}/000-notes.txt", io.BytesIO(b"mine"))
    office.process(office.happen("b"))
    assert office.export() == (1, 1)
    (name,) = (name for name in office.files() if name.endswith("1.tsv"))
    office.store.put("audits", f"{FOLDER}/{'0' * 12}.tsv", io.BytesIO(b"mine"))
    with pytest.raises(AuditExportError, match=r"000\.tsv' .* was not written by the export of the audit log"):
        office.export()
    assert len(office.files()[name]) == 3


@pytest.mark.timeout(120)
def test_files_of_ten_mebibytes(office: Office) -> None:
    events = [
        AuditEvent(
            AuditAction.ADD_CONTENT, "ann", n, "acme", "1", "file", "s", f"{n:0900d}", "ab" * 32, 5, "", number=n
        )
        for n in range(1, 13_001)
    ]
    office.outbox.cancel(office.happen("the last number")[0].number)
    with office.world.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = 13000 WHERE name = 'audit_outbox'")
    office.log.append(events)
    assert office.export() == (13_000, 2)
    first, second = (entry.size for entry in all_entries(office.store, "audits"))
    assert 10 * 1024 * 1024 - 1250 < first <= 10 * 1024 * 1024
    assert second > 1_000_000


def test_an_event_that_comes_late_holds_up_those_after_it_and_is_not_left_out(office: Office) -> None:
    first, late, last = office.happen("first", "late", "last")
    other = office.happen("other", space="t")
    office.process([first, last])
    office.process(other)
    assert office.export() == (2, 2)
    assert [line.split("\t")[3] for line in office.exported()] == ["first", "other"]
    office.process([late])
    assert office.export() == (2, 1)
    assert [line.split("\t")[3] for line in office.exported()] == ["first", "late", "last", "other"]


def test_a_run_whose_last_reply_is_lost_exports_nothing_twice(office: Office) -> None:
    office.process(office.happen("a"))
    office.export()
    office.process(office.happen("b"))
    good = office.world.stores["2"]
    office.world.stores["2"] = LostReplyStore(good, when=lambda call: call.method == "put")
    with pytest.raises(StoreUnavailableError):
        office.export()
    office.world.stores["2"] = good
    assert office.export() == (0, 0)
    assert [line.split("\t")[3] for line in office.exported()] == ["a", "b"]


def test_nothing_is_added_to_a_file_that_is_damaged_or_somebody_else_s(office: Office) -> None:
    office.process(office.happen("a"))
    office.export()
    (name,) = office.files()
    flip_bit(office.store.path_of("audits", name))
    office.process(office.happen("b"))
    with pytest.raises(AuditExportError, match="is not what was exported"):
        office.export()
    office.store.delete("audits", name)
    assert office.export() == (2, 1)
    office.store.put("audits", f"{FOLDER}/zzz.tsv", io.BytesIO(b"mine"))
    office.process(office.happen("c"))
    with pytest.raises(
        AuditExportError, match=r"'acme/1/s/zzz\.tsv' .* was not written by the export of the audit log"
    ):
        office.export()


@pytest.mark.parametrize(
    "forge",
    [
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: lines[:-1],
        lambda lines: [*lines[:2], lines[2].replace("ann", "eve"), lines[3]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines, "x" * 9],
        lambda lines: lines[1:],
        lambda _: [],
    ],
)
def test_lines_that_somebody_changed_at_the_provider_are_not_exported_again(
    office: Office, forge: Callable[[list[str]], list[str]]
) -> None:
    office.process(office.happen("a", "b", "c"))
    office.export()
    ((name, lines),) = office.files().items()
    forged = "".join(forge(lines)).encode()
    office.store.put("audits", name, io.BytesIO(forged), properties=office.store.info("audits", name).properties)
    office.process(office.happen("d"))
    with pytest.raises(AuditExportError, match="is not what was exported"):
        office.export()
    with office.store.open("audits", name) as file:
        assert file.read() == forged, "the forgery stays as evidence"
    office.store.delete("audits", name)
    assert office.export() == (4, 1)
    assert office.exported() == [*lines[1:], office.exported()[-1]]


@pytest.mark.parametrize("last", [3, 4])
def test_events_that_the_provider_counts_as_exported_are_missed(office: Office, last: int) -> None:
    office.process(office.happen("a", "b"))
    office.export()
    (name,) = office.files()
    office.process(office.happen("c", "d"))
    kept = office.store.info("audits", name).properties
    office.store.set_properties("audits", name, {**kept, "last-event": str(last)})
    office.process(office.happen("e"))
    with pytest.raises(AuditExportError, match="is not what was exported"):
        office.export()


def test_an_export_stops_where_the_database_was_restored_from_an_older_backup(office: Office) -> None:
    events = office.happen("a", "b", "c")
    office.process(events)
    office.export()
    files = office.files()
    with office.world.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM mill_audit_log WHERE number > 1")
        connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'audit_outbox'")
    with pytest.raises(AuditExportError, match=r"ends with event 3, which the audit log lacks.*mill\.audit_log"):
        office.export()
    again = office.happen("d", "e", "f")
    office.process(again)
    assert [event.number for event in again] == [2, 3, 4]
    with pytest.raises(AuditExportError, match="ends with event 3, which the audit log lacks"):
        office.export()
    assert office.files() == files


def test_the_export_does_not_export_its_own_files(office: Office) -> None:
    office.process(office.happen("000.tsv", store="2", space="audits"))
    assert office.export() == (0, 0)


def test_odd_names_have_folders_of_their_own(office: Office) -> None:
    office.process(office.happen("a", account=".."))
    office.process(office.happen("b", account="b", space="a%b"))
    assert office.export() == (2, 2)
    assert [name.rpartition("/")[0] for name in office.files()] == ["%2E./1/s", "b/1/a%25b"]


def test_the_command_exports_where_the_settings_say(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def millstream(*words: str) -> tuple[int, str]:
        code = run([*words, "--data", str(tmp_path / "node")])
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    (tmp_path / "node").mkdir()
    settings = tmp_path / "node" / "millstream.toml"
    stores = [f'[stores.{name}]\nurl = "file://{{data}}/stores/{name}"\naudited = true\n' for name in ("one", "two")]
    (tmp_path / "a.txt").write_text("grain")
    settings.write_text("".join(stores))
    assert millstream("store", "put", "one", "docs", str(tmp_path / "a.txt"), "--create")[0] == 0
    assert millstream("mill", "produce", "audit-log", "--once")[0] == 2
    settings.write_text('[mill]\naudit_log = "nine:audits"\n' + "".join(stores))
    code, said = millstream("mill", "produce", "audit-log", "--once")
    assert (code, "one of the stores one, two" in said) == (2, True)
    settings.write_text('[mill]\naudit_log = "two:audits"\n' + "".join(stores))
    LocalStore(tmp_path / "node" / "stores" / "two")
    assert millstream("mill", "produce", "audit-log", "--once")[1] == "0 events exported, 0 files written\n"
    assert millstream("mill", "work", "audit", "--drain")[0] == 0
    assert millstream("mill", "produce", "audit-log", "--once")[1] == "2 events exported, 1 file written\n"
    assert millstream("mill", "work", "audit", "--drain")[0] == 0
    assert millstream("mill", "produce", "audit-log", "--once")[1] == "0 events exported, 0 files written\n"
    listed = LocalStore(tmp_path / "node" / "stores" / "two").entries("audits")
    assert [entry.content_id for entry in listed] == ["local/one/docs/000000000001.tsv"]
