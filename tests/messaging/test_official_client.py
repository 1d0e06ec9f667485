"""The official Python client, unmodified, runs every kind of message against the broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from millstream.testing.brokers import BrokerProcess

pytestmark = pytest.mark.skipif(find_spec("rocketmq") is None, reason="pip install rocketmq-python-client")

CHILDREN = Path(__file__).parent / "children"
TOPICS = {
    "normal": "NORMAL", "invisible": "NORMAL", "expired": "NORMAL", "fifo": "FIFO", "delay": "DELAY",
    "transaction": "TRANSACTION", "filtered": "NORMAL", "pushed": "NORMAL", "push-fails": "NORMAL", "push-fifo": "FIFO",
}  # fmt: skip
FLOWS = (
    "push_fifo", "push_fails", "transaction", "delay", "normal", "invisible", "expired", "fifo", "filtered", "pushed",
    "wrong_type", "missing",
)  # fmt: skip


def run(flow: str, endpoint: str, home: Path) -> Any:
    result = subprocess.run(
        [sys.executable, str(CHILDREN / "official.py"), flow, endpoint],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.stdout, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def flows(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each flow found; they mostly wait, so they run side by side."""
    for name, kind in TOPICS.items():
        broker.create_topic(name, kind)
    home = tmp_path_factory.mktemp("home")
    with ThreadPoolExecutor(4) as threads:
        running: Sequence[tuple[str, Future[Any]]] = [
            (flow, threads.submit(run, flow, str(broker.place), home)) for flow in FLOWS
        ]
        yield dict(running)


def test_a_normal_message_arrives_once_and_whole(flows: dict[str, Future[Any]]) -> None:
    assert flows["normal"].result() == {
        "same_id": True, "body": "hello", "tag": "t", "keys": ["k"], "attempt": 1, "corrupted": False, "again": 0,
    }  # fmt: skip


def test_a_message_comes_back_when_its_invisible_duration_is_changed(flows: dict[str, Future[Any]]) -> None:
    assert flows["invisible"].result() == [1, 2, True]


def test_an_expired_handle_is_invalid(flows: dict[str, Future[Any]]) -> None:
    assert flows["expired"].result() == ["BadRequestException", 40013]


def test_p4_the_messages_of_a_group_come_in_order(flows: dict[str, Future[Any]]) -> None:
    got = flows["fifo"].result()
    for group in "012":
        assert [body for body in got if body[0] == group] == [f"{group}-{number}" for number in range(4)]


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(flows: dict[str, Future[Any]]) -> None:
    assert flows["delay"].result() == [["later"], 0, True]


def test_transactions_are_committed_rolled_back_and_recovered(flows: dict[str, Future[Any]]) -> None:
    assert flows["transaction"].result() == [["committed", "orphan"], ["orphan"]]


def test_messages_are_filtered_by_tag_and_by_condition(flows: dict[str, Future[Any]]) -> None:
    assert flows["filtered"].result() == [["a0", "a3", "c2"], ["a3", "b4"]]


def test_a_push_consumer_gets_each_message_once(flows: dict[str, Future[Any]]) -> None:
    assert flows["pushed"].result() == [[str(number), 1] for number in range(5)]


def test_a_push_consumer_that_fails_gets_the_message_again(flows: dict[str, Future[Any]]) -> None:
    assert flows["push_fails"].result() == [["hard", 1], ["hard", 2], ["hard", 3]]


def test_p4_a_push_consumer_keeps_order_past_a_dead_letter(flows: dict[str, Future[Any]]) -> None:
    got, dead = flows["push_fifo"].result()
    assert got == ["0", "1", "2", "2", "2", "2", "3", "4", "5"]
    assert dead == ["2"]


def test_a_message_of_the_wrong_type_is_refused(flows: dict[str, Future[Any]]) -> None:
    assert flows["wrong_type"].result() == "IllegalArgumentException"


def test_a_topic_that_is_not_there_is_not_found(flows: dict[str, Future[Any]]) -> None:
    assert "no-such-topic" in flows["missing"].result()


@pytest.mark.smoke
@pytest.mark.crash
def test_p3_the_official_client_goes_on_after_the_broker_was_killed(
    mortal_broker: BrokerProcess, tmp_path: Path
) -> None:
    mortal_broker.create_topic("restart")
    command = [sys.executable, str(CHILDREN / "official.py"), "restart", str(mortal_broker.place)]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        mortal_broker.kill()
        mortal_broker.start()
        child.stdin.write("go\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == ["before", "after"]
