"""The job ``audit``: every anchor of a ledger, replayed from its files in parallel.

The driver walks the chain of the ledger; tasks read each anchor's files, check every hash, Merkle root and rule, and
give its batches. What must hold between anchors (a batch and a message are anchored once, and the first one holds) is
found by grouping, and decided by the reader's own rule. Findings say where the files, the ledger, the node's index or a
second node differ.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.anchoring import AnchorIndex, Ledger, LedgerEntry
from millstream.anchoring.anchor_replay import ReplayFinding
from millstream.anchoring.duplicate_check import BatchMembers, find_duplicates
from millstream.anchoring.errors import LedgerError
from millstream.anchoring.ledger import checked_chain
from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, log_record, parquet_rows
from millstream.pipeline.output.shared_output import write_output
from millstream.pipeline.schema import read_parquet, spark_schema
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.task_rates import task_url
from millstream.pipeline.tasks.audit_task import (
    ANCHOR_SCHEMA,
    DID_SCHEMA,
    ENTRY_SCHEMA,
    STATE_SCHEMA,
    operations_part,
    read_part,
    resolve_part,
    state_digest,
)

if TYPE_CHECKING:
    from millstream.anchoring.registry.history import OperationHistory
    from millstream.anchoring.registry.protocol_versions import ProtocolVersions

MOST_FINDINGS = 10_000

_TASKS = 1000


class AnchorAuditResult(msgspec.Struct, frozen=True):
    """The result of an audit; ``findings`` is empty if everything is as it was anchored."""

    record: JobRecord
    findings: tuple[ReplayFinding, ...]


class _Anchor(msgspec.Struct):
    """The content of the files of an anchor, and the batches that readers refuse."""

    manifest: str
    rejects: int
    batches: int = 0
    messages: int = 0
    what: str | None = None
    reason: str | None = None
    refused: Mapping[int, str] = {}


def audit_anchors(
    spark: SparkSession,
    jobs: Path,
    ledger: Ledger,
    cas: str,
    *,
    index: AnchorIndex | None = None,
    peer: Ledger | None = None,
    clock: Clock | None = None,
) -> AnchorAuditResult:
    """Replay every anchor of *ledger* from the files at *cas* (``auditing.open_cas``) into a folder under *jobs*.

    *index* is what the node's observer found, *peer* the ledger of a second node; both are compared. Nothing of an
    earlier audit is believed. Raises :class:`JobBusyError`.
    """
    clock = clock or SystemClock()
    began = clock.monotonic()
    entries, broken = _chain(ledger)
    folder = JobFolder(jobs, "audit", {"head": entries[-1].hash if entries else "", "cas": cas})
    findings = list(broken)
    with folder.held():
        folder.begin()
        frame = _entries(spark, entries).mapInArrow(
            partial(read_part, cas=task_url(spark, cas)), spark_schema(ANCHOR_SCHEMA)
        )
        write_output(frame, folder.data)
        refused = _refused(read_parquet(spark, folder.data, ANCHOR_SCHEMA))
        anchors, size, files = _anchors(folder.data, refused)
        findings += [
            ReplayFinding("file", one.reason or "", n) for n, one in sorted(anchors.items()) if one.what == "file"
        ]
        if index is not None:
            findings += _compare(anchors, index, len(entries))
        if peer is not None:
            findings += _compare_ledgers(entries, peer)
        counts = {
            "files": files,
            "batches": sum(one.batches for one in anchors.values()),
            "messages": sum(one.messages for one in anchors.values()),
            "refused": sum(len(one.refused) for one in anchors.values()),
            "invalid": sum(one.what == "format" for one in anchors.values()),
            "findings": len(findings),
        }
        seconds = round(clock.monotonic() - began, 3)
        record = folder.record(rows_in=len(entries), rows_out=len(anchors), bytes=size, seconds=seconds, counts=counts)
        return AnchorAuditResult(folder.commit(record), tuple(findings[:MOST_FINDINGS]))


def audit_identifiers(
    spark: SparkSession,
    ledger: Ledger,
    cas: str,
    versions: ProtocolVersions,
    history: OperationHistory,
    *,
    peer: OperationHistory | None = None,
    clock: Clock | None = None,
) -> AnchorAuditResult:
    """Resolve every identifier that *ledger* anchors, from the files at *cas*, and compare with *history*.

    *peer* is what a second node knows; it must resolve each to the same.
    """
    clock = clock or SystemClock()
    began = clock.monotonic()
    entries, broken = _chain(ledger)
    findings = list(broken)
    known = total = 0
    with spark_errors_explained("audit"), _operations(spark, entries, cas, versions) as operations:
        faults = operations.where("what = 'file'").select("number", "reason").toArrow().to_pylist()
        findings += [ReplayFinding("file", row["reason"], row["number"]) for row in faults]
        for row in _states(operations, versions).toLocalIterator():
            known, total = known + 1, total + row["operations"]
            for name, other in (("index", history), ("peer", peer)):
                if other is not None and state_digest(other.state(row["suffix"])) != row["state"]:
                    findings.append(
                        ReplayFinding(name, f"{row['suffix']} does not resolve there to what the anchors say")
                    )
    counts = {"identifiers": known, "operations": total, "findings": len(findings)}
    seconds = round(clock.monotonic() - began, 3)
    record = JobRecord(
        job="audit-identifiers",
        inputs={"cas": cas},
        rows_in=len(entries),
        rows_out=known,
        seconds=seconds,
        counts=counts,
    )
    log_record(record)
    return AnchorAuditResult(record, tuple(findings[:MOST_FINDINGS]))


@contextlib.contextmanager
def _operations(
    spark: SparkSession, entries: Sequence[LedgerEntry], cas: str, versions: ProtocolVersions
) -> Iterator[DataFrame]:
    """The operations of all *entries*, read once and kept while the block runs."""
    read = partial(operations_part, cas=task_url(spark, cas), versions=versions)
    kept = _entries(spark, entries).mapInArrow(read, spark_schema(DID_SCHEMA)).persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _states(operations: DataFrame, versions: ProtocolVersions) -> DataFrame:
    """The resolution of each identifier."""
    return (
        operations.where("suffix != ''")
        .repartition("suffix")
        .sortWithinPartitions("suffix", "number", "place")
        .mapInArrow(partial(resolve_part, versions=versions), spark_schema(STATE_SCHEMA))
    )


def _chain(ledger: Ledger) -> tuple[list[LedgerEntry], list[ReplayFinding]]:
    """The entries of *ledger* up to the first break of its chain."""
    entries: list[LedgerEntry] = []
    try:
        entries.extend(checked_chain(ledger.entries()))
    except LedgerError as error:
        return entries, [ReplayFinding("ledger", str(error), len(entries) + 1)]
    return entries, []


def _entries(spark: SparkSession, entries: Sequence[LedgerEntry]) -> DataFrame:
    rows = pa.table([pa.array([msgspec.json.encode(entry) for entry in entries], pa.binary())], schema=ENTRY_SCHEMA)
    return spark.createDataFrame(rows).repartition(max(1, min(len(entries), _TASKS)))


_Refused = Mapping[int, Mapping[int, str]]
"""The batches that readers refuse because of others: by anchor and ordinal, their ids."""


def _refused(rows: DataFrame) -> _Refused:
    """The batches that readers refuse; only batches that share an id or a message with another one are examined."""
    batches = rows.where("ordinal >= 0").select("number", "ordinal", "log", "batch", "ids")
    named = batches.groupBy("log", "batch").count().where("count > 1").select("log", "batch")
    messages = batches.select("log", "batch", "number", "ordinal", F.explode("ids").alias("id"))
    shared = messages.groupBy("log", "id").count().where("count > 1").select("log", "id")
    places = messages.join(shared, ["log", "id"], "left_semi").select("number", "ordinal")
    places = places.unionByName(
        batches.join(named, ["log", "batch"], "left_semi").select("number", "ordinal")
    ).distinct()
    found = batches.join(places, ["number", "ordinal"], "left_semi").orderBy("log", "number", "ordinal")
    return _first_holds(row.asDict() for row in found.toLocalIterator())


def _first_holds(rows: Iterable[Mapping[str, Any]]) -> _Refused:
    refused: dict[int, Mapping[int, str]] = {}
    for _, of_log in itertools.groupby(rows, lambda row: row["log"]):
        messages: dict[int, int] = {}
        batches: dict[str, int] = {}
        for number, group in itertools.groupby(of_log, lambda row: row["number"]):
            own = list(group)
            members = BatchMembers.of([row["batch"] for row in own], [row["ids"] for row in own])
            bad = find_duplicates(members, messages, batches)
            refused[number] = {own[place]["ordinal"]: own[place]["batch"] for place in bad}
            for place, row in enumerate(own):
                if place not in bad:
                    batches[row["batch"]] = number
                    messages |= dict.fromkeys(row["ids"], number)
    return refused


def _anchors(data: Path, refused: _Refused) -> tuple[dict[int, _Anchor], int, int]:
    """The content of the files of each anchor, their total bytes, and their number."""
    anchors: dict[int, _Anchor] = {}
    held: dict[int, list[int]] = {}
    size = files = 0
    for part in parquet_rows(data, ANCHOR_SCHEMA.names, rows=1024):
        for row in part.to_pylist():
            number = row["number"]
            if row["ordinal"] < 0:
                size, files = size + row["bytes"], files + row["files"]
                own = refused.get(number, {})
                anchors[number] = _Anchor(
                    row["batch"], row["rejects"], what=row["what"], reason=row["reason"], refused=own
                )
            elif row["ordinal"] not in refused.get(number, {}):
                counts = held.setdefault(number, [0, 0])
                counts[0] += 1
                counts[1] += len(row["ids"])
    for number, (batches, messages) in held.items():
        anchors[number].batches, anchors[number].messages = batches, messages
    return anchors, size, files


def _compare(anchors: Mapping[int, _Anchor], index: AnchorIndex, last: int) -> Iterator[ReplayFinding]:
    known = set(index.numbers())
    for number in range(1, last + 1):
        found, status = anchors[number], index.anchor(number)
        if found.what == "file":
            continue  # nothing can be said of what cannot be read
        if status is None:
            yield ReplayFinding("index", f"anchor {number} is missing from the index", number)
        elif (found.what == "format") != (status.reason is not None) or (
            status.reason is None
            and (status.manifest, status.batches, status.messages, status.rejects, set(index.refused(number)))
            != (found.manifest, found.batches, found.messages, found.rejects, set(found.refused.values()))
        ):
            yield ReplayFinding("index", f"the index disagrees with the content of anchor {number}", number)
    for number in sorted(known - set(range(1, last + 1))):
        yield ReplayFinding("index", f"anchor {number} of the index is not in the ledger", number)


def _compare_ledgers(entries: Sequence[LedgerEntry], peer: Ledger) -> Iterator[ReplayFinding]:
    """Differences from the ledger of a second node; it is not a finding that one of them has fewer entries."""
    try:
        for mine, theirs in zip(entries, peer.entries(), strict=False):
            if mine.hash != theirs.hash:
                yield ReplayFinding(
                    "peer", f"the second node has another entry {mine.number} in its ledger", mine.number
                )
                return
    except LedgerError as error:
        yield ReplayFinding("peer", f"the ledger of the second node is damaged: {error}")
