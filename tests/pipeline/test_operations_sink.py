"""The driver's side of operations out of a log, without Spark: wherever it dies, each is anchored once (promise P7)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.anchoring.log_ledger import LogLedger
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.core.canonical import canonical_json
from millstream.core.clock import VirtualClock
from millstream.log import LogSpec, Writer
from millstream.node import Node
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.jobs import operations
from millstream.pipeline.jobs.operations import PRODUCER, OperationSink, check_part
from millstream.settings import RegistrySettings, Settings
from millstream.testing.dids import DidOwner

OUTCOMES = LogSpec("asked.outcomes")
STEPS: Sequence[tuple[type, str]] = [
    (OperationStore, "accept"),
    (Writer, "append"),
    (OperationStore, "prepare"),
    (LogLedger, "append"),
    (OperationStore, "anchored"),
    (OperationStore, "close_cut"),
]
"""The commits between a message of the log and the end of its operation."""


class DiedError(BaseException):
    """The driver, before or after the commit that the test chose. No part of it may catch that."""


class Frame:
    """What Spark hands to a sink, of which that asks one thing."""

    def __init__(self, rows: pa.Table) -> None:
        self.toArrow = lambda: rows


def asked(people: int) -> list[bytes]:
    """What *people* ask for, in turn: three operations each, the second one twice, and something that is none."""
    made = [DidOwner(f"person {number}") for number in range(people)]
    steps = [
        [person.create for person in made],
        [person.update() for person in made],
        [person.recover() for person in made],
    ]
    requests = [canonical_json(operation.request) for step in steps for operation in step]
    return [*requests, *requests[people : 2 * people], b"{"]


def drive(node: Node, bodies: Sequence[bytes], per_trigger: int) -> None:
    """Take *bodies* as the query does, all triggers anew, and anchor after each trigger, as an instance of its own."""
    registry = node.registry.instance
    registry.instances.heartbeat()
    node.clock.sleep(100)  # longer than an instance may be silent
    registry.instances.take_over_dead()
    with node.logs.store.log(OUTCOMES).writer(PRODUCER) as writer:
        sink = OperationSink(registry.acceptance, writer, node.clock, "asked")
        numbers = range(1, len(bodies) + 1)
        for start in range(0, len(bodies), per_trigger):
            columns = [part[start : start + per_trigger] for part in (numbers, bodies)]
            part = pa.RecordBatch.from_arrays([pa.array(columns[0]), pa.array(columns[1])], names=["id", "body"])
            sink(Frame(pa.Table.from_batches(check_part([part], registry.versions))), start)
            registry.instances.heartbeat()
            registry.work_once()
            registry.writer.cut(force=True)


def die_at(patch: pytest.MonkeyPatch, commit: int, *, after: bool) -> None:
    """Let the driver die at commit number *commit*, when it is done or before."""
    left = itertools.count(-commit)

    def dying(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            fatal = next(left) == 0
            if fatal and not after:
                raise DiedError
            done = step(*args, **kwargs)
            if fatal:
                raise DiedError
            return done

        return run

    for owner, name in STEPS:
        patch.setattr(owner, name, dying(getattr(owner, name)))


def open_node(folder: Path, clock: VirtualClock, **registry: Any) -> Node:
    return Node.open(Settings(data=str(folder), registry=RegistrySettings(**registry)), clock, create=True)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    deaths=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=4),
    per_trigger=st.integers(3, 20),
)
def test_p7_operations_are_anchored_once_wherever_the_driver_dies_between_commits(
    deaths: list[tuple[int, bool]], per_trigger: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, clock, people = tmp_path_factory.mktemp("node"), VirtualClock(), 4
    bodies = asked(people)
    for commit, after in deaths:
        with (
            open_node(folder, clock) as node,
            pytest.MonkeyPatch.context() as fatal,
            contextlib.suppress(DiedError),
        ):
            die_at(fatal, commit, after=after)
            drive(node, bodies, per_trigger)
        clock.advance(100)
    with open_node(folder, clock) as node:
        drive(node, bodies, per_trigger)
        registry = node.registry.instance
        states = {state: count for state, count in registry.store.counts().items() if count}
        assert states == {"observed": 3 * people}
        anchors = [registry.history.anchor(entry.number) for entry in node.registry.ledger.entries()]
        assert sum(one.operations for one in anchors if one is not None) == 3 * people
        assert all(one is not None and one.fault is None for one in anchors)
        said = [msgspec.json.decode(m.body) for batch in node.logs.store.log(OUTCOMES).read() for m in batch]
        assert [one["message"] for one in said] == list(range(1, len(bodies) + 1))
        taken = [one["operation"] for one in said[:-1]]
        assert taken[3 * people :] == taken[people : 2 * people]
        assert (len(set(taken)), said[-1]["code"]) == (3 * people, "not_json")


def take(node: Node, bodies: Sequence[bytes], *, per_trigger: int = 100, **options: Any) -> list[Any]:
    """Take *bodies*; what the log of outcomes has then."""
    registry = node.registry.instance
    with node.logs.store.log(OUTCOMES).writer(PRODUCER) as writer:
        sink = OperationSink(registry.acceptance, writer, node.clock, "asked", **options)
        for start in range(0, len(bodies), per_trigger):
            some = bodies[start : start + per_trigger]
            ids = pa.array(range(start + 1, start + len(some) + 1))
            part = pa.RecordBatch.from_arrays([ids, pa.array(some)], names=["id", "body"])
            sink(Frame(pa.Table.from_batches(check_part([part], registry.versions))), start)
    return outcomes(node)


def outcomes(node: Node) -> list[Any]:
    return [msgspec.json.decode(m.body) for batch in node.logs.store.log(OUTCOMES).read() for m in batch]


def fail_at(monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, requests: Sequence[bytes]) -> None:
    """Let the check of *requests*, or their way into the store, fail with *error*."""
    check, accept = operations.check_request, OperationStore.accept

    def failing_check(body: bytes, version: Any) -> Any:
        if body in requests:
            raise error
        return check(body, version)

    def failing_accept(store: OperationStore, submissions: Sequence[Any]) -> Any:
        if any(one.request in requests for one in submissions):
            raise error
        return accept(store, submissions)

    if where == "check":
        monkeypatch.setattr(operations, "check_request", failing_check)
    else:
        monkeypatch.setattr(OperationStore, "accept", failing_accept)


def test_a_job_that_waits_for_room_in_the_registry_can_be_stopped_and_the_next_one_takes_the_rest(
    tmp_path: Path,
) -> None:
    made = [canonical_json(DidOwner(f"person {number}").create.request) for number in range(3)]
    asked_to_stop, clock = iter([False, False, True]), VirtualClock()
    with open_node(tmp_path, clock, max_open=1) as node:
        assert [one["message"] for one in take(node, made[:1])] == [1]
        clock.advance(100)  # until the open operations are counted again
        with pytest.raises(PipelineError, match=r"stopped while it waited: 1 operations .* the limit is 1"):
            take(node, made, stopped=lambda: next(asked_to_stop))
        assert [one["message"] for one in outcomes(node)] == [1]
    with open_node(tmp_path, VirtualClock()) as node:
        assert [one["message"] for one in take(node, made)] == [1, 2, 3]


@pytest.mark.parametrize("where", ["check", "store"])
def test_an_operation_that_always_fails_is_named_and_can_be_skipped(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [canonical_json(DidOwner(f"person {number}").create.request) for number in range(3)]
    fail_at(monkeypatch, where, ValueError("odd one"), made[1:2])
    with open_node(tmp_path, VirtualClock()) as node:
        with pytest.raises(PipelineError, match=r"message 2 of log 'asked'.*ValueError: odd one.*--skip-failed"):
            take(node, made)
        said = take(node, made, skip_failed=True)
    assert [one.get("code") for one in said] == [None, "internal", None]
    assert "ValueError: odd one" in said[1]["error"]


@pytest.mark.parametrize("where", ["check", "store"])
@pytest.mark.parametrize("per_trigger", [1, 100])
def test_many_operations_that_fail_are_not_skipped(
    where: str, per_trigger: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [canonical_json(DidOwner(f"person {number}").create.request) for number in range(12)]
    fail_at(monkeypatch, where, ValueError("nothing works"), made)
    with open_node(tmp_path, VirtualClock()) as node:
        with pytest.raises(PipelineError, match=r"message \d of log 'asked'.*others fail, too"):
            take(node, [*made[:4], b"{", *made[4:]], skip_failed=True, per_trigger=per_trigger)
        assert len(outcomes(node)) == (8 if per_trigger == 1 else 0)


@pytest.mark.parametrize("where", ["check", "store"])
def test_operations_that_fail_between_accepted_ones_are_skipped(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [canonical_json(DidOwner(f"person {number}").create.request) for number in range(20)]
    fail_at(monkeypatch, where, ValueError("odd one"), made[::2])
    with open_node(tmp_path, VirtualClock()) as node:
        with pytest.raises(PipelineError, match=r"message 1 of log 'asked'.*ValueError: odd one.*--skip-failed"):
            take(node, made)
        said = take(node, made, skip_failed=True)
    assert [one.get("code") for one in said] == ["internal", None] * 10


def test_a_run_skips_a_limited_number_of_operations_and_the_next_one_continues_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [canonical_json(DidOwner(f"person {number}").create.request) for number in range(20)]
    fail_at(monkeypatch, "store", ValueError("odd one"), made[::2])
    monkeypatch.setattr(operations, "MOST_SKIPPED", 4)
    with open_node(tmp_path, VirtualClock()) as node:
        for count in (8, 16):
            with pytest.raises(PipelineError, match=rf"4 operations .* message {count + 1} fails, too: .*odd one"):
                take(node, made, skip_failed=True)
            assert len(outcomes(node)) == count
        said = take(node, made, skip_failed=True)
    assert [one.get("code") for one in said] == ["internal", None] * 10
    assert [one["message"] for one in said] == list(range(1, 21))


def test_an_operation_that_the_database_refuses_is_skipped_only_for_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [canonical_json(DidOwner(f"person {number}").create.request) for number in range(3)]
    with open_node(tmp_path, VirtualClock()) as node:
        with monkeypatch.context() as patched:
            cause = Exception("cannot execute INSERT in a read-only transaction")
            fail_at(patched, "store", sa.exc.InternalError("INSERT", {}, cause), made[1:2])
            with pytest.raises(PipelineError, match=r"message 2 of log 'asked'.*read-only.*correct the cause"):
                take(node, made, skip_failed=True)
            assert outcomes(node) == []
        fail_at(monkeypatch, "store", sa.exc.DataError("INSERT", {}, Exception("value too long")), made[1:2])
        said = take(node, made, skip_failed=True)
    assert [one.get("code") for one in said] == [None, "internal", None]
