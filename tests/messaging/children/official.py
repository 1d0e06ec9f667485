"""Flows of the official Python client, each printed as one line of JSON: ``official.py FLOW HOST:PORT``.

``ACCESS_KEY`` and ``SECRET`` in the environment sign its calls; ``GRPC_DEFAULT_SSL_ROOTS_FILE_PATH`` encrypts them.
"""

# ruff: noqa: TID251 (it stands for a user's program, which knows nothing of our clocks)

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

TLS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in os.environ
ENDPOINT = sys.argv[2]
FLOW = sys.argv[1]


def configuration() -> ClientConfiguration:
    return ClientConfiguration(ENDPOINT, Credentials(os.environ.get("ACCESS_KEY", ""), os.environ.get("SECRET", "")))


def message(topic: str, body: str, **properties: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def producer(*topics: str, checker: Any = None) -> Producer:
    made = Producer(configuration(), topics, checker=checker, tls_enable=TLS)
    made.startup()
    return made


def consumer(group: str, topic: str, expression: FilterExpression | None = None) -> SimpleConsumer:
    made = SimpleConsumer(
        configuration(), group, {topic: expression or FilterExpression()}, await_duration=1, tls_enable=TLS
    )
    made.startup()
    return made


def drain(source: SimpleConsumer, count: int, seconds: float = 15.0, *, ack: bool = True) -> list[Message]:
    found: list[Message] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        for each in source.receive(16, 2):
            found.append(each)
            if ack:
                source.ack(each)
    return found


def bodies(messages: list[Message]) -> list[str]:
    return [each.body.decode() for each in messages]


class Listener(MessageListener):
    """Collects what it gets until there are *count*; fails whatever *fails* says."""

    def __init__(self, count: int, fails: Any = lambda _message: False) -> None:
        self.count = count
        self.fails = fails
        self.got: list[tuple[str, int]] = []
        self.first, self.done = threading.Event(), threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        self.got.append((message.body.decode(), message.delivery_attempt))
        self.first.set()
        if len(self.got) >= self.count:
            self.done.set()
        return ConsumeResult.FAILURE if self.fails(message) else ConsumeResult.SUCCESS


def push(group: str, topic: str, listener: Listener, seconds: float = 20.0) -> list[tuple[str, int]]:
    made = PushConsumer(configuration(), group, listener, {topic: FilterExpression()})
    made.startup()
    listener.done.wait(seconds)
    made.shutdown()
    return listener.got


def signed() -> Any:
    producer("signed").send(message("signed", "signed"))
    source = consumer("signed-group", "signed")
    (got,) = source.receive(1, 30)
    source.ack(got)
    return got.body.decode()


def normal() -> Any:
    sender = producer("normal")
    receipt = sender.send(message("normal", "hello", tag="t", keys="k"))
    source = consumer("normal-group", "normal")
    got = drain(source, 1)[0]
    again = source.receive(16, 2)
    return {
        "same_id": receipt.message_id == got.message_id,
        "body": got.body.decode(),
        "tag": got.tag,
        "keys": sorted(got.keys),
        "attempt": got.delivery_attempt,
        "corrupted": got.corrupted,
        "again": len(again),
    }


def invisible() -> Any:
    sender = producer("invisible")
    sender.send(message("invisible", "once more"))
    source = consumer("invisible-group", "invisible")
    first = drain(source, 1, ack=False)[0]
    source.change_invisible_duration(first, 1)
    second = drain(source, 1)[0]
    return [first.delivery_attempt, second.delivery_attempt, first.message_id == second.message_id]


def expired() -> Any:
    sender = producer("expired")
    sender.send(message("expired", "late"))
    source = consumer("expired-group", "expired")
    first = source.receive(16, 1)[0]
    drain(source, 1, ack=False)  # delivered again, so the first handle has expired
    try:
        source.ack(first)
    except Exception as error:
        return [type(error).__name__, getattr(error, "code", None)]
    return []


def fifo() -> Any:
    sender = producer("fifo")
    for number in range(12):
        sender.send(message("fifo", f"{number % 3}-{number // 3}", message_group=f"group-{number % 3}"))
    return bodies(drain(consumer("fifo-group", "fifo"), 12))


def delay() -> Any:
    sender = producer("delay")
    due = int(time.time()) + 6  # time enough to recall one, on a busy machine too
    sender.send(message("delay", "later", delivery_timestamp=due))
    recalled = sender.send(message("delay", "never", delivery_timestamp=due))
    recall_id = sender.recall_message("delay", recalled.recall_handle)
    got = drain(consumer("delay-group", "delay"), 2, 9)
    early = [each for each in got if time.time() < due]
    return [bodies(got), len(early), str(getattr(recall_id, "message_id", recall_id)) == recalled.message_id]


class Checker(TransactionChecker):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, message: Message) -> TransactionResolution:
        self.asked.append(message.body.decode())
        return TransactionResolution.COMMIT


def transaction() -> Any:
    checker = Checker()
    sender = producer("transaction", checker=checker)
    for body, end in (("committed", "commit"), ("rolled back", "rollback"), ("orphan", "")):
        begun = sender.begin_transaction()
        sender.send(message("transaction", body), begun)
        if end:
            getattr(begun, end)()
    got = drain(consumer("transaction-group", "transaction"), 3, 5)
    return [sorted(bodies(got)), checker.asked]


def filtered() -> Any:
    sender = producer("filtered")
    for number, tag in enumerate("abcab"):
        made = message("filtered", f"{tag}{number}", tag=tag)
        made.add_property("number", str(number))
        sender.send(made)
    by_tag = drain(consumer("tag-group", "filtered", FilterExpression("a || c")), 3)
    condition = FilterExpression("number > 1 AND TAGS <> 'c'", FilterType.SQL)
    return [sorted(bodies(by_tag)), sorted(bodies(drain(consumer("sql-group", "filtered", condition), 2)))]


def pushed() -> Any:
    sender = producer("pushed")
    for number in range(5):
        sender.send(message("pushed", str(number)))
    return sorted(push("pushed-group", "pushed", Listener(5)))


def push_fails() -> Any:
    sender = producer("push-fails")
    sender.send(message("push-fails", "hard"))
    return push("push-fails-group", "push-fails", Listener(3, lambda each: each.delivery_attempt < 3))


def push_fifo() -> Any:
    sender = producer("push-fifo")
    for number in range(6):
        sender.send(message("push-fifo", str(number), message_group="one"))
    got = push("push-fifo-group", "push-fifo", Listener(9, lambda each: each.body == b"2"))
    dead = drain(consumer("undertaker", "%DLQ%push-fifo-group"), 1)
    return [[body for body, _ in got], bodies(dead)]


def wrong_type() -> Any:
    sender = producer("normal")
    try:
        sender.send(message("normal", "x", message_group="g"))
    except Exception as error:
        return type(error).__name__
    return ""


def missing() -> Any:
    sender = Producer(configuration(), ("no-such-topic",))
    sender.startup()
    try:
        sender.send(message("no-such-topic", "x"))
    except Exception as error:
        return str(error)
    return ""


def restart() -> Any:
    """Sends and receives, lets the test restart the broker, and does so again."""
    sender = producer("restart")
    listener = Listener(2)
    receiver = PushConsumer(configuration(), "restart-group", listener, {"restart": FilterExpression()})
    receiver.startup()
    sender.send(message("restart", "before"))
    listener.first.wait(20)
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + 40
    while time.monotonic() < end:
        with contextlib.suppress(Exception):  # each attempt takes a call to the broker
            sender.send(message("restart", "after"))
            break
    listener.done.wait(20)
    return [body for body, _ in listener.got]


if __name__ == "__main__":
    print(json.dumps(globals()[FLOW]()), flush=True)
    sys.stdout.flush()
    __import__("os")._exit(0)  # the client's own threads do not all end
