"""Operations on identifiers out of a log: each is taken, anchored and spoken of once, whenever the driver is killed."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from millstream.anchoring.registry import DidRegistry
from millstream.core.amounts import parse_duration
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, Message, open_store
from millstream.node import Node
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.operations import OperationsPlan, OperationsRun, run_operations
from millstream.settings import RegistrySettings, Settings
from millstream.testing.dids import DidOwner
from millstream.testing.killed_programs import kill_at
from millstream.testing.waiting import until
from suite.sizes import sized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

REFUSED = [b"", b"{", b"[]", b'{"type":"create"}', b'{"type":"update","didSuffix":"x"}', b"\xff" * 40]


def requests(seed: int, people: int) -> list[bytes]:
    """What people ask for, each in order and all mixed; some say it twice, and some of it is not an operation."""
    draw = random.Random(seed)
    queues: list[list[bytes]] = []
    for number in range(people):
        person = DidOwner(f"{seed}-{number}")
        asked = [person.create, *(person.update() for _ in range(draw.randrange(4)))]
        if draw.random() < 0.3:
            asked.append(person.recover())
        if draw.random() < 0.2:
            asked.append(person.deactivate())
        queues.append([canonical_json(operation.request) for operation in asked])
    stranger = DidOwner(f"{seed}-stranger")
    queues.append([canonical_json(stranger.update().request), *REFUSED])
    found: list[bytes] = []
    while queues:
        queue = draw.choice(queues)
        found.append(queue.pop(0))
        if draw.random() < 0.1:
            found.append(draw.choice(found))
        queues = [queue for queue in queues if queue]
    return found


def append(url: str, bodies: Sequence[bytes]) -> None:
    with open_store(url) as store, store.log(LogSpec("asked", block_messages=50)).writer() as writer:
        writer.append([Message(body) for body in bodies])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.open(Settings(data=str(tmp_path / "node")), create=True) as opened:
        yield opened


def plan_of(node: Node, per_trigger: int = 40) -> OperationsPlan:
    return OperationsPlan(node.settings.log_url, "asked", node.folder / "checkpoint", per_trigger)


def take(spark: SparkSession, node: Node, per_trigger: int = 40) -> OperationsRun:
    registry = node.registry.instance
    return run_operations(spark, plan_of(node, per_trigger), registry.acceptance, registry.versions, available_now=True)


def anchor(registry: DidRegistry) -> None:
    registry.work_once()
    registry.writer.cut(force=True)


def outcomes(url: str) -> list[dict[str, Any]]:
    with open_store(url) as store:
        log = store.log(LogSpec("asked.outcomes"), create=False)
        return [msgspec.json.decode(message.body) for batch in log.read() for message in batch]


def model(folder: Path, bodies: Sequence[bytes]) -> tuple[list[tuple[str | None, str | None]], dict[str, Any]]:
    """What a registry makes of the same requests, one after the other: code or id of each, and every document."""
    with Node.open(Settings(data=str(folder)), create=True) as plain:
        registry = plain.registry.instance
        found = [registry.acceptance.submit_many([body])[0] for body in bodies]
        anchor(registry)
        taken = [outcome.status for outcome in found if outcome.status is not None]
        documents = {f"did:sidetree:{one.suffix}": None for one in taken}
        said = [(outcome.code, outcome.status.id if outcome.status else None) for outcome in found]
        return said, {did: registry.history.resolve(did) for did in documents}


def check(node: Node, folder: Path, bodies: Sequence[bytes]) -> None:
    said, documents = model(folder, bodies)
    found = outcomes(node.settings.log_url)
    assert [one["message"] for one in found] == list(range(1, len(bodies) + 1))
    assert [(one.get("code"), one.get("operation")) for one in found] == said
    registry = node.registry.instance
    anchor(registry)
    distinct = {operation for _, operation in said if operation}
    assert {state: count for state, count in registry.store.counts().items() if count} == {"observed": len(distinct)}
    anchored = [registry.history.anchor(entry.number) for entry in node.registry.ledger.entries()]
    assert sum(one.operations for one in anchored if one is not None) == len(distinct)
    assert all(one is not None and one.fault is None for one in anchored)
    assert {did: without_times(registry.history.resolve(did)) for did in documents} == {
        did: without_times(document) for did, document in documents.items()
    }


def without_times(resolved: dict[str, Any] | None) -> Any:
    """The document and its state: batches may have been cut elsewhere."""
    assert resolved is not None
    return resolved["didDocument"], resolved["didDocumentMetadata"].get("deactivated")


def test_operations_come_out_as_a_registry_takes_them_one_by_one(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    bodies = requests(1, 25)
    half = len(bodies) // 2
    append(node.settings.log_url, bodies[:half])
    first = take(spark, node)
    assert (first.position, first.taken + first.refused) == (half, half)
    append(node.settings.log_url, bodies[half:])
    second = take(spark, node)
    assert first.refused + second.refused == sum("code" in one for one in outcomes(node.settings.log_url)) > 0
    check(node, tmp_path / "plain", bodies)


def test_a_trigger_that_is_repeated_and_a_checkpoint_that_is_lost_change_nothing(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    bodies = requests(2, 10)
    append(node.settings.log_url, bodies)
    take(spark, node)
    commits = node.folder / "checkpoint" / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    assert take(spark, node).taken == 0
    anchor(node.registry.instance)  # deactivated by now: what was taken is not refused when it comes again
    shutil.rmtree(node.folder / "checkpoint")
    assert take(spark, node).taken == 0
    check(node, tmp_path / "plain", bodies)


def test_the_outcomes_say_where_to_continue_where_the_checkpoint_is_ahead_of_them(
    spark: SparkSession, node: Node
) -> None:
    """As after a failover of the database to a replica without the last commits."""
    append(node.settings.log_url, [b"{"] * 2)
    take(spark, node)
    offsets = node.folder / "checkpoint" / "offsets" / "0"
    *head, last = offsets.read_text().splitlines()
    assert msgspec.json.decode(last)["id"] == 2
    offsets.write_text("\n".join([*head, '{"id": 4}']))
    offsets.with_name(".0.crc").unlink()
    append(node.settings.log_url, [b"{"] * 3)
    take(spark, node)
    assert [one["message"] for one in outcomes(node.settings.log_url)] == [1, 2, 3, 4, 5]


class WaitingClock(SystemClock):
    """The system's clock, which notes that somebody waited for seconds, and does not."""

    waited = False

    def sleep(self, seconds: float) -> None:
        self.waited = self.waited or seconds > 1
        super().sleep(min(seconds, 0.1))


def test_a_job_that_waits_for_room_in_the_registry_ends_when_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path / "node"), registry=RegistrySettings(max_open=1))
    with Node.open(settings, create=True) as node:
        append(node.settings.log_url, [canonical_json(DidOwner("early").create.request)])
        assert take(spark, node).position == 1
        append(node.settings.log_url, [canonical_json(DidOwner("late").create.request)])
    with Node.open(settings) as node:  # counts the open operations anew
        registry, clock = node.registry.instance, WaitingClock()
        done = run_operations(
            spark, plan_of(node), registry.acceptance, registry.versions, stopped=lambda: clock.waited, clock=clock
        )
        assert (clock.waited, done.position) == (True, 1)


@pytest.mark.crash
def test_p7_a_driver_that_is_killed_at_any_moment_loses_and_doubles_no_operation(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The child is killed when its outcomes have grown to a length drawn at random."""
    bodies, draw = requests(3, sized(ci=30, long=200)), random.Random(3)
    short = RegistrySettings(op_queue_task_expiration=parse_duration("1s"))
    settings = Settings(data=str(tmp_path / "node"), registry=short)
    with Node.open(settings, create=True) as made:
        append(made.settings.log_url, bodies)
    (tmp_path / "node" / "millstream.toml").write_text('[registry]\nop_queue_task_expiration = "1s"\n')
    kills = sized(ci=1, long=4)
    for _ in range(kills):
        goal = told(settings.log_url) + draw.randrange(1, len(bodies) // (kills + 2))
        command = ["pipeline", "operations", "asked", "--per-trigger", "7", "--data", settings.data]
        reached = lambda goal=goal: told(settings.log_url) >= goal  # noqa: E731
        kill_at([sys.executable, "-m", "millstream", *command], reached, f"outcome {goal}")
    with Node.open(settings) as node:
        plan = OperationsPlan(node.settings.log_url, "asked", node.folder / "operations" / "asked.checkpoint", 40)
        run_operations(
            spark, plan, node.registry.instance.acceptance, node.registry.instance.versions, available_now=True
        )
        until(lambda: inherited(node.registry.instance), "the operations of the dead")
        check(node, tmp_path / "plain", bodies)


def inherited(registry: DidRegistry) -> bool:
    """Take over what dead instances had; whether nothing is left to do."""
    registry.instances.take_over_dead()
    anchor(registry)
    return not registry.store.open_count()


def told(url: str) -> int:
    """How many outcomes there are."""
    with open_store(url) as store:
        return store.log(LogSpec("asked.outcomes")).last_id


def test_outcomes_of_another_log_are_refused(spark: SparkSession, node: Node) -> None:
    append(node.settings.log_url, [b"{"])
    with (
        open_store(node.settings.log_url) as store,
        store.log(LogSpec("asked.outcomes")).writer("operations") as writer,
    ):
        writer.append([b"{}"], sequence=7)
    with pytest.raises(PipelineInputError, match=r"up to message 7, but .* now ends at 1"):
        take(spark, node)
