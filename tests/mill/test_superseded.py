"""A sweep that changes overtake: what was deleted or changed meanwhile is not reported as damage."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.superseded import recheck_superseded
from millstream.mill.integrity_decision import CheckVerdict, ManifestAction
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult
from millstream.mill.reports.report import ReportResult
from millstream.node import Node
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.jobs import report
from millstream.pipeline.jobs.report import RESULT_SCHEMA, JudgedSweep
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, remove_old_jobs
from millstream.settings import Settings
from millstream.stores import ChecksumOrigin, LocalStore
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox
from millstream.testing.damage import flip_bit
from support.wrong_checksums import WRONG, WrongChecksums

ITEMS = ("changed", "deleted", "healthy", "missing", "sour")


@pytest.fixture
def findings(world: Any) -> list[CheckResult]:
    """Of a sweep that found four of five items bad; then one was changed and one deleted, as recorded."""
    for name in ITEMS:
        world.put(ItemRef("1", "s", name), name.encode())
    checker = BitChecker(world.providers, world.manifest)
    for name in ("changed", "deleted", "missing"):
        world.stores["1"].delete("s", name)
    world.record(ItemRef("1", "s", "sour"), "a" * 64, size=4)
    world.clock.advance(2 * 24 * 3600)
    results = [checker.check(ItemRef("1", "s", name)).result for name in ITEMS]
    world.clock.advance(1)
    world.put(ItemRef("1", "s", "changed"), b"a new version")
    world.record(ItemRef("1", "s", "deleted"), None, deleted=True)
    return results


def test_what_was_changed_or_deleted_meanwhile_is_looked_at_again(world: Any, findings: list[CheckResult]) -> None:
    bad = [one for one in findings if one.verdict != "SUCCESS"]
    assert [one.content_id for one in bad] == ["changed", "deleted", "missing", "sour"]
    again = recheck_superseded(bad, world.manifest, BitChecker(world.providers, world.manifest))
    assert [(one.content_id, one.row) for one in again] == [("changed", "B1"), ("deleted", "B21")]


def test_a_change_that_waits_in_the_outbox_is_no_finding_of_the_sweep(world: Any) -> None:
    for name in ("forged", "waiting"):
        world.put(ItemRef("1", "s", name), b"recorded")
        world.put(ItemRef("1", "s", name), b"other bytes", record=False)
    findings = [
        BitChecker(world.providers, world.manifest).check(ItemRef("1", "s", name)).result
        for name in ("forged", "waiting")
    ]
    assert [one.row for one in findings] == ["B9", "B9"]
    outbox = AuditOutbox(world.engine, world.clock)
    outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "acme", "1", "memory", "s", "waiting"))
    checker = BitChecker(world.providers, world.manifest, AuditLookup(AuditLog(world.engine), outbox, ["1"]))
    (again,) = recheck_superseded(findings, world.manifest, checker)
    assert (again.content_id, again.row, again.verdict) == ("waiting", "B11", CheckVerdict.IGNORE)


def test_an_object_that_the_row_of_another_store_contradicts_is_not_recorded_by_a_sweep(world: Any) -> None:
    for name in ("forged", "new"):
        world.put(ItemRef("1", "s", name), b"bytes", record=False)
    world.clock.advance(2 * 24 * 3600)
    findings = [
        BitChecker(world.providers, world.manifest).check(ItemRef("1", "s", name)).result for name in ("forged", "new")
    ]
    assert [(one.row, one.action) for one in findings] == [("B15", ManifestAction.CREATE)] * 2
    world.record(ItemRef("2", "s", "forged"), "a" * 64)
    (again,) = recheck_superseded(findings, world.manifest, BitChecker(world.providers, world.manifest))
    assert (again.content_id, again.row, again.action) == ("forged", "B25", ManifestAction.KEEP)


def test_a_wrong_checksum_is_looked_at_again_where_it_is_our_own_and_not_the_providers(world: Any) -> None:
    found = []
    for store, origin in (("1", ChecksumOrigin.PROVIDER), ("2", ChecksumOrigin.USER)):
        sha256 = world.put(ItemRef(store, "s", "a"), b"good")
        world.stores[store] = WrongChecksums(world.stores[store], origin)
        detail = ("B7", "store-checksum", "…", world.clock.now(), 4, sha256, WRONG, sha256)
        found.append(CheckResult(store, "s", "a", CheckVerdict.FAILURE, *detail))
    again = recheck_superseded(found, world.manifest, BitChecker(world.providers, world.manifest))
    assert [(one.store, one.row, one.provider) for one in again] == [("2", "B27", WRONG)]


def sweep_of(results: list[CheckResult], folder: Path) -> JudgedSweep:
    """The sweep with *results*, kept in *folder*."""
    rows = [
        {name: getattr(one, name, 0.0) for name in RESULT_SCHEMA.names} | {"action": one.action.value}
        for one in results
    ]
    pq.write_table(pa.Table.from_pylist(rows, RESULT_SCHEMA), folder / "part.parquet")
    return JudgedSweep(JobRecord(job="report", inputs={}, rows_in=5, rows_out=5, seconds=1.0), folder, reused=False)


def test_the_report_of_the_sweep_counts_what_is_so_now(world: Any, findings: list[CheckResult], tmp_path: Path) -> None:
    judged = sweep_of(findings, tmp_path)
    (before,) = judged.spaces()
    assert (before.report.failed, before.report.listed) == (4, 5)
    overtaken = list(recheck_superseded(judged.findings(), world.manifest, BitChecker(world.providers, world.manifest)))
    (after,) = judged.spaces(overtaken)
    assert [finding.content_id for finding in after.report.findings] == ["missing", "sour"]
    assert after.report.outcomes == {"FAILURE": 2, "IGNORE": 1, "SUCCESS": 2}
    assert (after.report.result, after.report.listed, after.report.coverage) == (ReportResult.FAILURE, 5, 1.0)
    assert sum(after.report.kinds.values()) == 5


def test_p9_damage_that_was_found_since_a_sweep_is_in_its_report_and_stays_recorded(world: Any, tmp_path: Path) -> None:
    store = world.stores["1"] = LocalStore(tmp_path / "1")
    checker = BitChecker(world.providers, world.manifest)
    for name in ("healthy", "rots"):
        world.put(ItemRef("1", "s", name), b"good")
    results = [checker.check(ItemRef("1", "s", name)).result for name in ("healthy", "rots")]
    judged = sweep_of(results, tmp_path)
    world.clock.advance(24 * 3600)  # the command was killed, and its run is resumed
    flip_bit(store.path_of("s", "rots"))
    world.manifest.writer.apply([checker.check(ItemRef("1", "s", "rots")).result])
    world.clock.advance(24 * 3600)
    failed = frozenset(world.manifest.failed_since(judged.started_at()))
    assert failed == {("1", "s", "rots")}
    overtaken = list(recheck_superseded(judged.findings(failed), world.manifest, checker))
    assert [(one.content_id, one.verdict) for one in overtaken] == [("rots", CheckVerdict.FAILURE)]
    world.manifest.writer.apply(overtaken)
    world.manifest.writer.apply(judged.results())
    assert world.manifest.get("1", "s", "rots").outcome == "FAILURE"
    (space,) = judged.spaces(overtaken)
    assert (space.report.result, space.report.outcomes) == (ReportResult.FAILURE, {"FAILURE": 1, "SUCCESS": 1})
    assert [finding.content_id for finding in space.report.findings] == ["rots"]


def test_reports_of_a_sweep_name_the_first_findings_and_count_all(
    world: Any, findings: list[CheckResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {name: getattr(findings[-1], name, 0.0) for name in RESULT_SCHEMA.names}
        | {"action": findings[-1].action.value, "content_id": f"item-{number * 7 % 100:02}"}
        for number in range(100)
    ]
    pq.write_table(pa.Table.from_pylist(rows, RESULT_SCHEMA), tmp_path / "part.parquet")
    monkeypatch.setattr(report, "MOST_NAMED", 10)
    judged = JudgedSweep(JobRecord(job="report", inputs={}, rows_in=5, rows_out=5, seconds=1.0), tmp_path, reused=False)
    (space,) = judged.spaces()
    assert [finding.content_id for finding in space.report.findings] == [f"item-{number:02}" for number in range(10)]
    assert (space.report.failed, space.report.result) == (100, ReportResult.FAILURE)
    assert space.report.notes == ("90 more findings are only in the results of the sweep",)


def test_findings_of_items_without_a_record_share_what_reports_name(
    findings: list[CheckResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.Table.from_pylist([], RESULT_SCHEMA), tmp_path / "part.parquet")
    monkeypatch.setattr(report, "MOST_NAMED", 10)
    judged = JudgedSweep(JobRecord(job="report", inputs={}, rows_in=0, rows_out=0, seconds=1.0), tmp_path, reused=False)
    lost = [
        msgspec.structs.replace(findings[-1], space=f"space-{number % 5}", content_id=f"item-{number:03}")
        for number in range(100)
    ]
    spaces = judged.spaces((), lost)
    assert [(space.report.failed, len(space.report.findings)) for space in spaces] == [(20, 2)] * 5


@pytest.mark.parametrize(
    ("counts", "share"),
    [([], 100), ([0, 0], 100), ([7, 30], 93), ([500], 100), ([500, 500], 50), ([10, 0, 500, 500], 45), ([9] * 200, 1)],
)
def test_spaces_share_the_findings_that_their_reports_name_however_many_spaces_there_are(
    counts: list[int], share: int
) -> None:
    found = report.fair_share(counts, 100)
    assert found == share
    assert sum(min(count, found) for count in counts) <= max(100, len(counts))


def test_jobs_that_nobody_has_used_for_long_are_removed_and_those_at_work_never(tmp_path: Path) -> None:
    old, new, busy = (JobFolder(tmp_path, "integrity", {"sweep": name}) for name in ("old", "new", "busy"))
    for folder in (old, new):
        with folder.held():
            folder.begin()
    with busy.held():
        for folder in (old, busy):
            os.utime(folder.path / "inputs.json", (1000, 1000))
        assert remove_old_jobs(tmp_path, before=1_000_000_001) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([new.path.name, busy.path.name])


@pytest.mark.parametrize("is_failed", [False, True])
def test_each_command_with_jobs_that_succeeds_removes_old_jobs(
    tmp_path: Path, is_failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipeline.session.spark_session", lambda *_, **__: contextlib.nullcontext())
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        old, new = (JobFolder(node.spark.jobs, "inventory", {"run": name}) for name in ("old", "new"))
        for folder in (old, new):
            with folder.held():
                folder.begin()
        os.utime(old.path / "inputs.json", (1000, 1000))
        with contextlib.suppress(PipelineError), node.spark.session():
            if is_failed:
                raise PipelineError("a task failed")
        assert old.path.exists(), "its results may still be read"
    assert (old.path.exists(), new.path.exists()) == (is_failed, True)


def test_an_old_job_that_cannot_be_locked_is_kept_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = JobFolder(tmp_path, "inventory", {"run": "old"})
    with folder.held():
        folder.begin()

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert remove_old_jobs(tmp_path, before=2**62) == 0
    assert f"{folder.path} is kept: its results cannot be deleted ([Errno 37] No locks available" in caplog.text


def test_an_old_job_that_cannot_be_removed_is_kept_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = JobFolder(tmp_path, "inventory", {"run": "old"})
    with folder.held():
        folder.begin()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    assert remove_old_jobs(tmp_path, before=2**62) == 0
    assert f"{folder.path} is kept: its results cannot be deleted ([Errno 13] Permission denied" in caplog.text
