"""A node that is stopped does not first complete a long look at all of its spaces and logs, or one that hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import LogSpec
from millstream.mill.adoption.status import ProtectionStatus, SpaceStatus
from millstream.mill.manifest import ManifestEvent
from millstream.node import Node
from millstream.settings import load_settings
from millstream.status import poller as status_poller
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.snapshot import take_snapshot
from millstream.status.verdict.copies import LookStoppedError
from millstream.testing.waiting import join

SPACES = 5


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with a policy for several spaces."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "duplication-accounts.json").write_text('["me"]')
    policy = {"defaultPolicies": [{"srcStoreId": "one", "destStoreId": "two"}]}
    (tmp_path / "policies" / "me-duplication-policy.json").write_text(json.dumps(policy))
    with Node.open(load_settings({"data": str(tmp_path)}, environment={})[0], create=True) as made:
        made.stores.manifest.writer.record(
            [ManifestEvent("one", f"s{number}", "item", 1, "0" * 64, 1) for number in range(SPACES)]
        )
        yield made


def test_a_look_at_the_spaces_ends_at_the_next_space_when_the_poller_stops(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    looking = threading.Event()
    whole = ProtectionStatus.spaces

    def watched(status: ProtectionStatus) -> Iterator[SpaceStatus]:
        for one in whole(status):
            seen.append(one.space)
            looking.set()
            for thread in threading.enumerate():
                if thread.name == "watch-sample":  # another look of the poller, which ends when the poller stops
                    thread.join(30)
            yield one

    monkeypatch.setattr(ProtectionStatus, "spaces", watched)
    poller = StatusPoller(NodeView(node))
    poller.start()
    try:
        assert looking.wait(30)
    finally:
        poller.stop()
    assert seen == ["s0"]


def test_a_look_that_hangs_does_not_keep_the_process_from_ending(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_poller, "_STOP_SECONDS", 0.0)
    looking, answered, left = threading.Event(), threading.Event(), threading.Event()

    def hanging(*_: object) -> None:
        looking.set()
        answered.wait(30)  # as a statement on a database that does not answer
        left.set()
        raise LookStoppedError

    monkeypatch.setattr(status_poller, "take_snapshot", hanging)
    poller = StatusPoller(NodeView(node))
    poller.start()
    assert looking.wait(30)
    poller.stop()
    assert not left.is_set()
    answered.set()
    for thread in poller._threads:
        join(thread)


def test_a_snapshot_ends_at_the_next_log_when_the_poller_stops(node: Node) -> None:
    view, seen = NodeView(node), list[int]()
    for number in range(SPACES):
        node.logs.store.log(LogSpec(f"log{number}"))

    def stopping() -> bool:
        seen.append(1)
        return len(seen) > 4

    with pytest.raises(LookStoppedError):
        take_snapshot(view, stopping=stopping)
    assert len(seen) == 5
