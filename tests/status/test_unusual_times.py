"""A message with an unusual receive time does not end the verdict; other issues are told beside what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cli.status import verdict_lines
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.verdict.judge import judge

DAY = 24 * 3600 * MICROSECONDS
LAST = 2**63 - 1


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with Node.open(Settings(data=str(tmp_path)), VirtualClock(), create=True) as node:
        yield node


def append(node: Node, received_at: int) -> None:
    with node.logs.store.log(LogSpec("imported")).writer() as writer:
        writer.append([Message(b"x", received_at=received_at)])


@pytest.mark.parametrize("ahead", [DAY, LAST - 1])
def test_a_receive_time_ahead_of_the_clock_is_an_issue_that_names_its_log(node: Node, ahead: int) -> None:
    append(node, min(LAST, node.clock.now() + ahead))
    (issue,) = [one for one in StatusPoller(NodeView(node)).verdict().issues if one.kind == "clock"]
    assert issue.what.endswith(", in the log imported)")
    assert "`millstream log trim`" in issue.todo


def test_an_issue_since_a_time_that_no_calendar_has_is_printed(node: Node) -> None:
    append(node, 1 - 2**63)
    node.logs.store.log(LogSpec("imported")).set_pointer("reader", 0)
    verdict = StatusPoller(NodeView(node)).verdict()
    (line,) = [one for one in verdict_lines(verdict, is_monitored=True) if "consumer-behind" in one]
    assert line.endswith(f"(since {1 - 2**63})")


def test_the_other_issues_are_told_if_some_cannot_be_judged(node: Node) -> None:
    append(node, node.clock.now() + DAY)
    poller = StatusPoller(NodeView(node))
    poller.verdict()
    facts = poller.facts()
    broken: Any = None
    verdict = judge(msgspec.structs.replace(facts, depths=broken))
    assert "clock" in {one.kind for one in verdict.issues}
    (unknown,) = verdict.unknown
    assert unknown.subject == "issues of queues" and "AttributeError" in unknown.what
