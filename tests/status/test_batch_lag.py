"""Messages that are not batched yet are late by the rules of their batches, whichever member of the node looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.batching.settings import BatchingSettings
from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings
from millstream.settings.serving import ServeSettings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller

HOUR = 3600
GRACE = 300


def settings(folder: Path, window: int) -> Settings:
    """A member whose batches may take as long as *window* seconds."""
    batching = BatchingSettings(Duration(window * MICROSECONDS), Duration(0))
    return Settings(data=str(folder), batching=batching, serve=ServeSettings(batching={"in": "out"}))


def append(node: Node, clock: VirtualClock) -> None:
    with node.logs.store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"x", key=str(clock.now()), source="pump", event_time=clock.now())])


def batch(node: Node) -> None:
    service = node.batching.service("in", "out")
    service.step()
    service.close()


def late_since(node: Node) -> int | None:
    (found,) = [one.since for one in StatusPoller(NodeView(node)).verdict().issues if one.kind == "not-batched"] or [
        None
    ]
    return found


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_member_with_other_settings_waits_by_the_rules_in_force(tmp_path: Path, is_changed: bool) -> None:
    """The batching role is elsewhere. The rules are in the state, and once they were changed, in the log of batches."""
    clock = VirtualClock()
    with Node.open(settings(tmp_path, 2 * HOUR), clock, create=True) as node:
        for _ in range(2):
            append(node, clock)
            clock.advance(3 * HOUR)
        append(node, clock)
        batch(node)
    if is_changed:  # what is received now may still be in a batch of the rules before
        with Node.open(settings(tmp_path, 60), clock) as node:
            node.batching.change_rules("out")
    with Node.open(settings(tmp_path, 1), clock) as node:
        append(node, clock)
        received = clock.now()
        clock.advance(2 * HOUR + GRACE)
        assert late_since(node) is None
        clock.advance(1)
        assert late_since(node) == received + (2 * HOUR + GRACE) * MICROSECONDS + 1


def test_rules_that_ended_long_ago_do_not_delay_the_issue(tmp_path: Path) -> None:
    clock = VirtualClock()
    with Node.open(settings(tmp_path, 2 * HOUR), clock, create=True) as node:
        append(node, clock)
        batch(node)
    with Node.open(settings(tmp_path, 60), clock) as node:
        node.batching.change_rules("out")
        clock.advance(5 * HOUR)
        append(node, clock)
        batch(node)
        append(node, clock)
        received = clock.now()
        clock.advance(60 + GRACE + 1)
        assert late_since(node) == received + (60 + GRACE) * MICROSECONDS + 1


def test_messages_are_not_called_late_while_the_rules_in_force_cannot_be_read(tmp_path: Path) -> None:
    clock = VirtualClock()
    with Node.open(settings(tmp_path, 2 * HOUR), clock, create=True) as node:
        append(node, clock)
        batch(node)
    (tmp_path / "batching" / "out.state").write_bytes(b"damaged")
    with Node.open(settings(tmp_path, 1), clock) as node:
        clock.advance(HOUR)
        issues = {one.kind: one.what for one in StatusPoller(NodeView(node)).verdict().issues}
    assert issues.keys() == {"trouble", "unprotected"}
    assert issues["trouble"].startswith("batching of in cannot be read: ")
