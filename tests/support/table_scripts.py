"""What is done with each of the tables of a node, and what is read from them: to be compared between databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.anchoring import AnchorIndex, BatchWriter, MemoryLedger, Observer
from millstream.anchoring.cas import MemoryCas
from millstream.anchoring.journal import BatchJournal
from millstream.anchoring.journal_reader import BatchFilter, JournalReader
from millstream.anchoring.states import FeedPosition
from millstream.anchoring.transparency.tree_tables import (
    DatabaseTiles,
    SignedCheckpoint,
    TreeState,
    make_tree_tables,
    read_state,
    write_problem,
    write_state,
)
from millstream.core.clock import VirtualClock
from millstream.core.sql import writing
from millstream.mill.adoption.catalog import AdoptedFiles, AdoptionCatalog, AdoptionFinding
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.differences import ComparedItem, ItemDifference
from millstream.mill.duplication.held_items import HeldItems
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity_decision import BitCheckOutcome, CheckVerdict, ManifestAction
from millstream.mill.manifest import CheckResult, Manifest, ManifestEvent
from millstream.mill.manifest_table import AddedItems, IntactItems
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.repair.repair_log import RepairEvent, RepairLog
from millstream.mill.reports.coverage import coverage_of, findings_of
from millstream.mill.reports.report import SpaceTally, build_report
from millstream.mill.reports.statistics import SpaceSize, SpaceStatisticsTable, StatisticsPeriod
from millstream.mill.reports.table import ReportTable
from millstream.mill.retirement import StoreRetirement
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.status.history import MinuteSample, StatusHistory
from millstream.status.models import Sample
from millstream.stores.audit import AuditAction, AuditEvent
from millstream.stores.audit.intents import IntentGroup
from millstream.stores.audit.outbox import AuditOutbox
from millstream.testing.batches import CONFIG, make_batch, make_rejects
from support.protected_spaces import add_spaces, space_statuses

IDS = ["a", "A", "a ", "a/b", "Ab", "z", "é", "日", "\U0001f600", "x" * 1024]
"""Ids that a database may take for one another, and the longest one."""

SUM, OTHER = "a" * 64, "b" * 64
Script = Callable[[sa.Engine], Iterator[Any]]


def manifest(engine: sa.Engine) -> Iterator[Any]:
    manifest = Manifest(engine)
    manifest.writer.record_added(AddedItems("1", "s", 100, IDS, [SUM] * 10, list(range(10)), ["text/plain"] * 10))
    manifest.writer.record(
        [
            ManifestEvent("1", "s", "a", 99, OTHER, 1),
            ManifestEvent("1", "s", "é", 101, deleted=True),
            ManifestEvent("1", "s", "z", 102, OTHER, 8),
            ManifestEvent("1", "s", "z", 103, SUM, 9),
            ManifestEvent("2", "s", "z", 100, None),
        ]
    )
    yield list(manifest.scan("1", "s"))
    yield [columns.columns for columns in manifest.scan_columns("1", "s", after="A")]
    outcome = BitCheckOutcome("B1", CheckVerdict.SUCCESS, "intact", "all agree")
    manifest.writer.apply_intact(IntactItems("1", "s", 200, outcome, ["a", "é", "A"], [SUM, SUM, OTHER], [1, 2, 3]))
    found = [
        CheckResult("1", "s", "A", CheckVerdict.FAILURE, "B3", "corrupt", "x", 201, 5, SUM, OTHER, None),
        CheckResult("1", "s", "Ab", CheckVerdict.FAILURE, "B4", "gone", "x", 202, 5, SUM, None, None,
                    ManifestAction.MARK_MISSING),
        CheckResult("1", "s", "z", CheckVerdict.SUCCESS, "B5", "new", "x", 203, 7, SUM, OTHER, OTHER,
                    ManifestAction.SET_TO_STORE),
        CheckResult("1", "s", "new", CheckVerdict.SUCCESS, "B6", "new", "x", 204, 7, None, OTHER, OTHER,
                    ManifestAction.CREATE),
        CheckResult("1", "s", "a/b", CheckVerdict.FAILURE, "B3", "stale", "x", 205, 5, OTHER, OTHER, None),
        CheckResult("2", "s", "z", CheckVerdict.SUCCESS, "B7", "none", "x", 206, 5, None, None, None),
    ]  # fmt: skip
    manifest.writer.apply(found)
    manifest.writer.apply_intact(IntactItems("1", "s", 200, outcome, ["A", "Ab"], [SUM, SUM], [1, 2]))  # older
    manifest.writer.apply([msgspec.structs.replace(one, checked_at=one.checked_at - 1, detail="y") for one in found])
    yield manifest.rows().to_pylist(), sorted(manifest.failed_since(201))
    manifest.writer.record([ManifestEvent("1", "s", "A", 300, SUM, 5), ManifestEvent("1", "s", "a", 300, OTHER, 5)])
    yield manifest.rows().to_pylist()
    yield sorted(manifest.get_many("1", "s", IDS).values(), key=lambda row: row.content_id)
    yield manifest.get_columns("1", "s", [*IDS, "absent", "n\0"])
    yield manifest.replicas("s", "z"), sorted(map(repr, manifest.replicas_of("s", ["z", "a"])))
    yield manifest.page("1", "s", after="a", limit=3), manifest.starting_with("1", "s", "a", limit=3)
    yield (
        manifest.spaces(),
        manifest.count(),
        manifest.size("1", "s"),
        manifest.has_items("2"),
        manifest.get("1", "s", "z"),
    )
    yield list(manifest.only_in("1", "s", ["2"])), list(manifest.lacking(["1"], "s", "2", until=200))
    yield coverage_of(engine), findings_of(engine, 10)


def bit_log(engine: sa.Engine) -> Iterator[Any]:
    log = BitLog(engine)
    results = [
        CheckResult("1", "s", name, CheckVerdict.SUCCESS, "B1", "intact", "x", at, 7, SUM, SUM, "missing")
        for name in IDS
        for at in (1, 2)
    ]
    log.append(results)
    log.append(results)
    outcome = BitCheckOutcome("B1", CheckVerdict.SUCCESS, "intact", "all agree")
    log.append_intact(IntactItems("1", "t", 5, outcome, IDS, [SUM] * 10, list(range(10))))
    log.append_intact(IntactItems("1", "t", 5, outcome, IDS, [SUM] * 10, list(range(10))))
    yield list(log.results("1", "s")), list(log.results("1", "t", since=3)), log.count("1", "s"), log.spaces()
    log.purge("1", "s", until=1)
    yield list(log.results("1", "s"))


def _event(content_id: str, action: AuditAction = AuditAction.ADD_CONTENT, **values: Any) -> AuditEvent:
    return AuditEvent(action, "ann", 0, "me", "1", "memory", "s", content_id, **values)


def outbox(engine: sa.Engine) -> Iterator[Any]:
    clock = VirtualClock()
    outbox, other = AuditOutbox(engine, clock, holder="me"), AuditOutbox(engine, clock, holder="other")
    begun = outbox.begin_all([_event(name, sha256=SUM, properties={"k": "é"}) for name in IDS])
    yield begun, outbox.newest(), other.begin_all([_event("a"), _event("free")])[1]
    group = IntentGroup(_event(""), "me", ["g1", "g2", "g3"], [SUM] * 3, ["t/p"] * 3, [{}] * 3)
    made, busy = outbox.begin_group(group)
    yield made, busy, outbox.newest(), outbox.open_intents(), sorted(outbox.pending("1", "s"))
    outbox.done_all([begun[0].event, begun[1].event])  # type: ignore[union-attr]
    outbox.done(made.intents()[1].event)
    outbox.cancel(begun[2].event.number)  # type: ignore[union-attr]
    yield outbox.events(), outbox.undelivered(), outbox.oldest(), sorted(outbox.open_of("1", "s", [*IDS, "g1", "g2"]))
    delivered = list[int]()
    yield outbox.deliver(delivered.extend), delivered, outbox.get(delivered), outbox.waiting("1", "s", "a")
    outbox.remove(delivered)
    yield outbox.settled("1", "s"), list(outbox.pending_in_order("1", "s", 4)), outbox.settled("1", "t")
    yield outbox.begin(_event("last")), outbox.newest()


def audit_log(engine: sa.Engine) -> Iterator[Any]:
    Manifest(engine)
    log = AuditLog(engine)
    events = [
        msgspec.structs.replace(_event(name, sha256=SUM, properties={"é": "ü"}, acls={}), number=number, at=number)
        for number, name in enumerate([*IDS, "a", "gone"], 1)
    ]
    events.append(msgspec.structs.replace(_event("gone", AuditAction.DELETE_CONTENT), number=13, at=13))
    log.append(events)
    log.append(events)
    yield list(log.events()), list(log.last_events("1", "s")), log.last("1", "s", IDS)
    yield log.last_sums("1", "s", [*IDS, "gone"]), list(log.scan_sums("1", "s")), list(log.without_row("1", "s"))
    yield log.spaces(), log.spaces_by_account()


def adoption(engine: sa.Engine) -> Iterator[Any]:
    catalog = AdoptionCatalog(engine)
    catalog.drop_unused_index()
    versions = [str(1_700_000_000_000_000_000 + number) for number in range(10)]
    files = AdoptedFiles("1", "s", 7, IDS, list(range(10)), versions, [SUM] * 10, ["text/plain"] * 10)
    catalog.save_files(files)
    first = catalog.get_many("1", "s", IDS)
    catalog.save(
        [msgspec.structs.replace(first["a"], vanished_at=8), msgspec.structs.replace(first["é"], sha256=OTHER)]
    )
    yield list(catalog.scan("1", "s")), [columns.columns for columns in catalog.scan_columns("1", "s")]
    yield catalog.page("1", "s", prefix="a", limit=5), catalog.page("1", "s", prefix="日", limit=5)
    yield catalog.totals("1", "s"), catalog.holders("1", "s", [OTHER]), catalog.reread_before("1", "s", 2)
    finding = AdoptionFinding(store="1", space="s", content_id="a", kind="unreadable", detail="d", found_at=1)
    catalog.replace_findings("1", "s", [finding, finding])
    yield catalog.findings("1", "s"), catalog.spaces()
    catalog.remove("1", "s", IDS[:5])
    yield [item.content_id for item in catalog.scan("1", "s")]


def protection(engine: sa.Engine) -> Iterator[Any]:
    add_spaces(engine, 0, 8)
    add_spaces(engine, 0, 4, case=str.upper)
    yield from space_statuses(engine)
    archive = ReportTable(engine, MemoryCas)
    for number, space in enumerate(("s0", "S0", "s0")):
        archive.save(build_report(SpaceTally(), "two", space, started_at=number, ended_at=number + 1))
    asked = [(store, space) for store in ("one", "two") for space in ("s0", "S0", "s1")]
    yield sorted((*key, one.version, one.read()) for key, one in archive.heads(asked).items())


def held_items(engine: sa.Engine) -> Iterator[Any]:
    clock = VirtualClock()
    held, pair = HeldItems(engine, clock), Pair("1", "2")
    for moment in range(2):
        clock.advance(1.0)
        items = [
            ComparedItem(name, ItemDifference.HELD if moment else ItemDifference.DELETE, 1, replaces=False)
            for name in IDS[moment:]
        ]
        held.record(pair, "s", items, is_held=True)
        yield held.page(pair, "s"), held.counts(), held.vanished(), held.of_item("s", "z")


def retirement(engine: sa.Engine) -> Iterator[Any]:
    manifest, statistics = Manifest(engine), SpaceStatisticsTable(engine)
    guard, outbox = ChangeGuard(engine, VirtualClock(), manifest.count), AuditOutbox(engine, holder="elsewhere/1/2/ab")
    for store in ("here", "gone"):
        outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "me", store, "file", "s", "new", SUM, 1))
    for store, at in (("here", 100), ("gone", 90)):
        manifest.writer.record_added(AddedItems(store, "s", at, IDS, [SUM] * 10, list(range(10)), ["text/plain"] * 10))
    manifest.writer.record(
        [
            ManifestEvent("here", "s", "z", 101, deleted=True),
            ManifestEvent("gone", "s", "A", 102, OTHER),
            ManifestEvent("here", "s", "a ", 103, OTHER),
            ManifestEvent("gone", "s", "a/b", 104, deleted=True),
            ManifestEvent("gone", "t", "é", 104, None),
            ManifestEvent("gone", "x-quarantine", "é", 104, None),
        ]
    )
    bad = CheckResult("here", "s", "é", CheckVerdict.FAILURE, "B3", "corrupt", "x", 201, 5, SUM, OTHER, None)
    manifest.writer.apply([bad])
    statistics.add(SpaceSize("gone", "s", 1, 9, 45))
    vanished = ComparedItem("a", ItemDifference.HELD, 1, replaces=False)
    guard.items.record(Pair("gone", "here"), "s", [vanished], is_held=False)
    policies = Policies({"me": Policy("me", {"s": (Pair("here", "there"),)})})
    retiring = StoreRetirement(manifest, statistics, guard, ["here"], policies, outbox=outbox)
    found = retiring.find("gone")
    yield found
    retiring.retire(found, VirtualClock(5), writers_stopped=True)
    yield manifest.rows().to_pylist()
    yield statistics.latest()
    yield guard.items.counts()
    yield [one.event.store for one in outbox.open_intents(others=True)]


def repairs_and_statistics(engine: sa.Engine) -> Iterator[Any]:
    repairs = RepairLog(engine, holder="me")
    begun = repairs.begin(RepairEvent(1, "1", "s", "é", False, "rot"))
    repairs.end(begun, RepairEvent(2, "1", "s", "é", True, "rot", SUM))
    repairs.append([RepairEvent(3, "1", "s", name, True, "rot") for name in IDS])
    repairs.abandon(repairs.begin(RepairEvent(4, "1", "s", "a", False, "rot")))
    yield repairs.last(5), repairs.left()
    sizes, day = SpaceStatisticsTable(engine), 24 * 3600 * 1_000_000
    for size in (SpaceSize("1", "s", day, 1, 10), SpaceSize("1", "s", day, 2, 20), SpaceSize("1", "s", day + 5, 5, 31)):
        sizes.add(size)
    yield sizes.latest(), sizes.latest("2"), sizes.averages("1", "s", StatisticsPeriod.DAY)


def console(engine: sa.Engine) -> Iterator[Any]:
    log = OperatorAuditLog(engine, VirtualClock())
    for number in range(3):
        log.add("ann", "Delete", f"queue é, task {number}", reason="r" * 100_000, facts_of={"n": number})
    yield log.last(2), log.last(about="QUEUE"), log.last(target="queue é"), log.of("Delete", "queue é, task 1")
    history = StatusHistory(engine)
    sample = MinuteSample(counters=Sample(at=60_000_000, messages=1, batches=2, anchors=3, open_tasks=4, dead_tasks=5))
    history.add(sample)
    history.add(sample)
    yield history.read(60_000_000)


def trees(engine: sa.Engine) -> Iterator[Any]:
    make_tree_tables(engine)
    with writing(engine) as connection:
        own = DatabaseTiles(engine, "messages", connection)
        own.put({(0, 0): b"\0\xff" * 4000, (1, 0): b"x"})
        own.put({(0, 0): b"%s?'\\" * 4000})
        write_state(connection, "messages", TreeState(3, SignedCheckpoint(b"data", 3, b"\0" * 32)))
        write_state(connection, "messages", TreeState(4, SignedCheckpoint(b"data2", 4, b"\1" * 32)))
        write_problem(connection, "messages", "cannot")
    with engine.connect() as connection:
        yield read_state(connection, "messages"), read_state(connection, "registry")
    yield DatabaseTiles(engine, "messages").tile(0, 0), DatabaseTiles(engine, "messages").tile(1, 0)


def journal(engine: sa.Engine) -> Iterator[Any]:
    journal, reader = BatchJournal(engine), JournalReader(engine)
    batches = [make_batch([number], hour=number, cut="conflict" if number % 4 else "window") for number in range(1, 13)]
    rejects = [(number, "late" if number % 2 else "duplicate") for number in range(100, 107)]
    yield journal.add("weather", CONFIG, batches, rejects), journal.add("weather", CONFIG, batches, rejects)
    yield journal.add("Weather", CONFIG, batches[:2], [])
    journal.reject({3: "a message of it is anchored already"})
    yield journal.totals(), journal.rejected(), journal.streams(), reader.batches(), reader.ends(), reader.rejects()
    yield reader.starts(buckets=4), reader.open_messages(), reader.batches(BatchFilter("weather", rejected=True))
    stream = journal.streams()[0]
    yield journal.candidates(stream, 5), list(journal.message_ids(stream, 5)), list(journal.waiting_parts(stream, 9))
    yield journal.batch_of("weather", 5), journal.reject_reason("weather", 101), list(reader.names())
    for last_id in (9, 4):
        journal.add("weather", CONFIG, [], [], fed=FeedPosition("weather.batches", last_id))
        yield journal.fed("weather.batches"), journal.fed("Weather.batches")
    sources = ["pump ", "pump", "pump\t", "Pump", "pümp", "pump  "]
    journal.add("pumps", CONFIG, [make_batch([number], source) for number, source in enumerate(sources, start=1)], [])
    yield list(journal.waiting_parts(journal.stream("pumps", CONFIG), 99))
    journal.drop_rejects("weather", [5, *range(101, 3_000, 2)])
    yield reader.rejects(), journal.totals()


def anchored_rejects(engine: sa.Engine) -> Iterator[Any]:
    clock, cas, index = VirtualClock(), MemoryCas(), AnchorIndex(engine)
    ledger = MemoryLedger(clock)
    writer = BatchWriter(BatchJournal(engine), cas, ledger, Observer(index, cas, ledger), clock=clock)
    for number, ids in enumerate(([900, 902], [905], [1 << 62, (1 << 62) + 1])):
        writer.add("weather", [make_batch([number + 1])], make_rejects(ids), config=CONFIG)
        writer.cut(force=True)
        yield index.rejected("weather", [1, 902, 904, 905, (1 << 62) + 1]), index.rejected("Weather", [905])


SCRIPTS = [
    manifest,
    bit_log,
    outbox,
    audit_log,
    adoption,
    protection,
    held_items,
    retirement,
    repairs_and_statistics,
    console,
    trees,
    journal,
    anchored_rejects,
]
