"""Stages 5 and 6: sweep every copy, break two on purpose, find them, repair them, sweep again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.demo.errors import DemoError
from millstream.demo.runner import DemoRun, StageResult
from millstream.demo.stages.copies import COPIES, FILES_SPACE, SPACES
from millstream.mill.tasks import QueueName, Repair, encode_task
from millstream.node import Node
from millstream.stores import CAS_SPACE, ItemNotFoundError, LocalStore, hash_stream
from millstream.testing.damage import flip_bit, remove

if TYPE_CHECKING:
    from millstream.mill.manifest import CheckResult
    from millstream.pipeline.jobs.report import JudgedSweep, SpaceSweep


def sweep_files(name: str) -> Callable[[DemoRun], None]:
    """The part of the sweep *name* that needs no anchors."""

    def run(demo_run: DemoRun) -> None:
        spark = demo_run.spark
        demo_run.stop_at_close(spark.sparkContext.cancelAllJobs)
        _judge(demo_run, name, [FILES_SPACE])

    return run


def sweep_copies(name: str, *groups: Sequence[str]) -> Callable[[DemoRun], StageResult]:
    """The stage that reads every bit of every copy, judges what was seen, and keeps a report of each space.

    Each of *groups* of spaces (default: all in one) is swept by itself.
    """

    def run(demo_run: DemoRun) -> StageResult:
        node, size = demo_run.node, 0
        spaces: list[SpaceSweep] = []
        found: list[CheckResult] = []
        for group in groups or [SPACES]:
            judged = _judge(demo_run, name, group)
            overtaken = node.mill.checks.recheck_superseded(judged.findings())
            node.mill.checks.writer.write(judged.results(overtaken))
            for space in judged.spaces(overtaken):
                report = node.mill.reports.reporter.keep(space.report)
                spaces.append(msgspec.structs.replace(space, report=report))
            found += judged.findings()
            size += judged.record.bytes
        found.sort(key=lambda finding: (finding.store, finding.space, finding.content_id))
        spaces.sort(key=lambda space: (space.report.store, space.report.space))
        facts = {"spaces": [_row(space) for space in spaces], "findings": [msgspec.to_builtins(one) for one in found]}
        checked = sum(space.report.checked for space in spaces)
        return StageResult({"copies checked": checked, "findings": len(found)}, size, facts)

    return run


def _judge(demo_run: DemoRun, name: str, spaces: Sequence[str]) -> JudgedSweep:
    """The sweep *name* of *spaces*, judged; what was done before is not done again."""
    from millstream.pipeline.jobs.integrity import run_integrity
    from millstream.pipeline.jobs.report import run_report

    node, jobs = demo_run.node, demo_run.node.folder / "jobs"
    sweep = run_integrity(
        demo_run.spark, jobs, name, node.settings.store_urls, node.stores.manifest.rows(), spaces=spaces,
        clock=node.clock,
    )  # fmt: skip
    return run_report(demo_run.spark, jobs, sweep, clock=node.clock)


def damage_copies(demo_run: DemoRun) -> StageResult:
    """Flip one bit in a copy of an anchored file, and delete a copy of another file, behind everybody's back.

    What is to be damaged is written down first, so that a run that was cut short damages nothing twice.
    """
    targets = _chosen(demo_run)
    for target in targets:
        _damage(demo_run.node, target)
    return StageResult({"copies damaged": len(targets)}, 0, {"damage": targets})


def repair_copies(demo_run: DemoRun) -> StageResult:
    """Put a repair task for every finding on the queue, and let workers repair what a vote allows."""
    node, findings = demo_run.node, demo_run.facts("sweep-2")["findings"]
    queue = node.queues.open(QueueName.REPAIR)
    if not queue.depth().open:
        tasks = {(f["space"], f["content_id"]): f["detail"] for f in findings}
        queue.put([encode_task(Repair(*item, reason)) for item, reason in tasks.items()])
    node.mill.workers(QueueName.REPAIR).run_until_drained()
    repairs = [event for event in node.mill.repairs.log.last() if event.healed]
    sizes = [node.stores.providers[event.store].info(event.space, event.content_id).size for event in repairs]
    return StageResult({"copies repaired": len(repairs)}, sum(sizes))


def _row(space: SpaceSweep) -> dict[str, Any]:
    report = space.report
    return {
        "store": report.store,
        "space": report.space,
        "listed": report.listed,
        "checked": report.checked,
        "failed": report.failed,
        "coverage": report.coverage,
        "result": report.result.value,
        "bytes": report.bytes,
        "rate": round(space.rate),
    }


def _chosen(demo_run: DemoRun) -> list[dict[str, str]]:
    path = demo_run.folder / "damage.json"
    if not path.exists():
        draw = random.Random(demo_run.plan.delivery.seed)
        targets = [
            {"how": "bit flipped", **_pick(demo_run.node, draw, COPIES[0], CAS_SPACE)},
            {"how": "deleted", **_pick(demo_run.node, draw, COPIES[1], FILES_SPACE)},
        ]
        write_durably(path, msgspec.json.encode(targets))
    return msgspec.json.decode(path.read_bytes(), type=prepared(list[dict[str, str]]))


def _pick(node: Node, draw: random.Random, store: str, space: str) -> dict[str, str]:
    rows = [row for row in _rows(node, store, space) if row["size"]]
    row = draw.choice(sorted(rows, key=lambda row: str(row["content_id"])))
    return {"store": store, "space": space, "content_id": row["content_id"], "sha256": row["sha256"]}


def _rows(node: Node, store: str, space: str) -> Iterator[dict[str, Any]]:
    yield from node.stores.manifest.rows(store, space, live_only=True).to_pylist()


def _damage(node: Node, target: dict[str, str]) -> None:
    store = node.stores.providers[target["store"]]
    if not isinstance(store, LocalStore):
        raise DemoError(
            f"store {target['store']!r} is not a local folder, and the demo damages only local folders: "
            f"set the URL of [stores.{target['store']}] in millstream.toml to file://PATH"
        )
    try:
        path = store.path_of(target["space"], target["content_id"])
    except ItemNotFoundError:
        return  # an earlier run has deleted it
    if target["how"] == "deleted":
        remove(path)
    elif _is_whole(path, target["sha256"]):
        flip_bit(path)


def _is_whole(path: Path, sha256: str) -> bool:
    with path.open("rb") as file:
        return hash_stream(file).sha256 == sha256
