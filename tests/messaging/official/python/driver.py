"""The driver of the official Python client; ``../README.md`` says what it is told and what it answers.

The client counts in whole seconds; durations and times are rounded up.
"""

# ruff: noqa: TID251 (it stands for a user's program, which knows nothing of our clocks)

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
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
from rocketmq.v5.exception import ClientException

Request = dict[str, Any]
Result = dict[str, Any]

TLS = os.environ.get("TLS") == "1"
CREDENTIALS = Credentials(os.environ.get("ACCESS_KEY"), os.environ.get("SECRET"))
FILTERS = {"TAG": FilterType.TAG, "SQL": FilterType.SQL}
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}

output = sys.stdout
output_lock = threading.Lock()


class Unsupported(Exception):
    """The client cannot do it."""


class Checker(TransactionChecker):  # type: ignore[misc]
    """Answers each question about a transaction alike."""

    def __init__(self, request: Request) -> None:
        self._name = request["name"]
        self._resolution = RESOLUTIONS[request["check"]]

    def check(self, message: Message) -> Any:
        write({"event": "check", "name": self._name, "body": body_of(message)})
        return self._resolution


class Listener(MessageListener):  # type: ignore[misc]
    """Tells when it is called and when it returns, and fails as it was told."""

    def __init__(self, request: Request) -> None:
        self._name = request["name"]
        self._fail = request.get("fail", {})
        self._hold = request.get("hold", 0) / 1000

    def consume(self, message: Message) -> ConsumeResult:
        described = describe(message)
        success = described["attempt"] > self._fail.get(described["body"], self._fail.get("*", 0))
        self._tell("begin", message=described)
        time.sleep(self._hold)
        self._tell("end", message=described, result="success" if success else "failure")
        return ConsumeResult.SUCCESS if success else ConsumeResult.FAILURE

    def _tell(self, event: str, **fields: Any) -> None:
        write({"event": event, "name": self._name, "at": time.time_ns() // 1_000_000, **fields})


class Driver:
    """The clients that have been started, and the messages that simple consumers have received."""

    def __init__(self, place: str) -> None:
        self._configuration = ClientConfiguration(place, CREDENTIALS)
        self._clients: dict[str, Any] = {}
        self._received: dict[int, Message] = {}
        self._numbers = itertools.count(1)
        self._actions: dict[str, Callable[[Request], Result]] = {
            "producer": self._producer,
            "send": self._send,
            "transaction": self._transaction,
            "recall": self._recall,
            "simple": self._simple,
            "receive": self._receive,
            "ack": self._ack,
            "hide": self._hide,
            "push": self._push,
            "close": self._close,
        }

    def answer(self, request: Request) -> None:
        """Carry *request* out and write what came of it."""
        try:
            action = self._actions.get(request["request"])
            if action is None:
                raise Unsupported(f"there is no request {request['request']}")
            write({"id": request["id"], "ok": action(request)})
        except Exception as error:
            write({"id": request["id"], "error": describe_error(error)})

    def _producer(self, request: Request) -> Result:
        if request.get("attempts"):
            raise Unsupported("the number of attempts of a send is what the server's settings say")
        checker = Checker(request) if request.get("check") else None
        return self._start(request, Producer(self._configuration, request.get("topics", []), checker, tls_enable=TLS))

    def _send(self, request: Request) -> Result:
        receipt = self._clients[request["name"]].send(to_message(request))
        return {"id": receipt.message_id, "recall": receipt.recall_handle or ""}

    def _transaction(self, request: Request) -> Result:
        producer = self._clients[request["name"]]
        transaction = producer.begin_transaction()
        receipt = producer.send(to_message(request), transaction)
        if request.get("end") == "commit":
            transaction.commit()
        elif request.get("end") == "rollback":
            transaction.rollback()
        return {"id": receipt.message_id}

    def _recall(self, request: Request) -> Result:
        return {"id": self._clients[request["name"]].recall_message(request["topic"], request["handle"])}

    def _simple(self, request: Request) -> Result:
        consumer = SimpleConsumer(
            self._configuration,
            request["group"],
            filters(request),
            await_duration=seconds(request.get("await", 0)),
            tls_enable=TLS,
        )
        return self._start(request, consumer)

    def _receive(self, request: Request) -> Result:
        consumer = self._clients[request["name"]]
        messages = []
        for message in consumer.receive(request["count"], seconds(request["invisible"])):
            number = next(self._numbers)
            self._received[number] = message
            messages.append({**describe(message), "number": number})
        return {"messages": messages}

    def _ack(self, request: Request) -> Result:
        self._clients[request["name"]].ack(self._received[request["number"]])
        return {}

    def _hide(self, request: Request) -> Result:
        message = self._received[request["number"]]
        self._clients[request["name"]].change_invisible_duration(message, seconds(request["invisible"]))
        return {}

    def _push(self, request: Request) -> Result:
        threads = {"consumption_thread_count": request["threads"]} if request.get("threads") else {}
        consumer = PushConsumer(
            self._configuration, request["group"], Listener(request), filters(request), tls_enable=TLS, **threads
        )
        return self._start(request, consumer)

    def _close(self, request: Request) -> Result:
        self._clients.pop(request["name"]).shutdown()
        return {}

    def _start(self, request: Request, client: Any) -> Result:
        client.startup()
        self._clients[request["name"]] = client
        return {}


def to_message(request: Request) -> Message:
    """The message that *request* describes."""
    message = Message()
    message.topic = request["topic"]
    message.body = request.get("body", "").encode().ljust(request.get("fill", 0), b".")
    for key in request.get("keys", []):
        message.keys = key  # adds it
    for name, value in request.get("properties", {}).items():
        message.add_property(name, value)
    if request.get("tag"):
        message.tag = request["tag"]
    if request.get("group"):
        message.message_group = request["group"]
    if request.get("delay"):
        message.delivery_timestamp = math.ceil(time.time() + request["delay"] / 1000)
    return message


def filters(request: Request) -> dict[str, FilterExpression]:
    """What a consumer subscribes to."""
    return {topic: FilterExpression(text, FILTERS[kind]) for topic, (kind, text) in request["filters"].items()}


def seconds(milliseconds: int) -> int:
    """*milliseconds*, rounded up."""
    return math.ceil(milliseconds / 1000)


def describe(message: Message) -> Result:
    """*message* in an answer or an event."""
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": body_of(message),
        "tag": message.tag or "",
        "keys": sorted(message.keys),
        "group": message.message_group or "",
        "properties": message.properties,
        "attempt": message.delivery_attempt,
    }


def body_of(message: Message) -> str:
    """The body without its filling."""
    return str(message.body.rstrip(b".").decode())


def describe_error(error: BaseException) -> Result:
    """*error* in an answer."""
    code = error.code if isinstance(error, ClientException) else None
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    return {"kind": type(error).__name__, "code": code or 0, "text": "; ".join(dict.fromkeys(texts))}


def write(line: Result) -> None:
    """Write *line* whole."""
    text = json.dumps(line) + "\n"
    with output_lock:
        output.write(text)
        output.flush()


def main() -> None:
    """Read requests until there are no more."""
    sys.stdout = sys.stderr
    driver = Driver(sys.argv[1])
    for line in sys.stdin:
        threading.Thread(target=driver.answer, args=(json.loads(line),), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
