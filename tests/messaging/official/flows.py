"""What applications do with a client, each as a function of its driver; all of them assert what a user relies on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from official.clients import SECONDS, ClientError, Driver, OfficialClient

from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import TOPICS, TopicInfo
from millstream.testing.brokers import BrokerProcess
from millstream.testing.waiting import until

MEBIBYTE = 1 << 20
CLOCK = SystemClock()


class Stage(msgspec.Struct):
    """A client's driver before a broker; ``prefix`` begins the names of topics and groups that are this flow's own."""

    client: OfficialClient
    driver: Driver
    broker: BrokerProcess
    prefix: str

    def topic(self, kind: str = "NORMAL", name: str = "t") -> str:
        """A new topic; of one queue, since Node's client knows no other."""
        topic = f"{self.prefix}-{name}"
        self.broker.create_topic(topic, kind, 1 if self.client.language == "node" else 4)
        return topic

    @property
    def group(self) -> str:
        return f"{self.prefix}-group"

    def produce(self, *topics: str, check: str = "") -> None:
        self.driver.ask("producer", name="p", topics=list(topics), check=check)

    def send(self, topic: str, body: str, **fields: Any) -> dict[str, Any]:
        return dict(self.driver.ask("send", name="p", topic=topic, body=body, **fields))

    def consume(self, topic: str, expression: Sequence[str] = ("TAG", "*"), *, name: str = "s") -> None:
        filters = {topic: list(expression)}
        self.driver.ask("simple", name=name, group=f"{self.group}-{name}", filters=filters, **{"await": 2000})

    def push(self, topic: str, **fields: Any) -> None:
        self.driver.ask("push", name="c", group=self.group, filters={topic: ["TAG", "*"]}, **fields)

    def handled(self, count: int) -> list[str]:
        """What the listener has handled, once that are *count* messages."""
        until(lambda: len(self.driver.handled("c")) >= count, f"{count} messages", seconds=SECONDS)
        return self.driver.handled("c")

    def dead(self, body: str) -> None:
        """Return when *body* is among the dead letters of the group, whose topic is made for the first of them."""
        topic = f"%DLQ%{self.group}"
        until(lambda: any(each.name == topic for each in self.topics()), "dead letters", seconds=SECONDS)
        self.driver.ask("simple", name="dead", group="dead", filters={topic: ["TAG", "*"]}, **{"await": 2000})
        until(lambda: body in [each["body"] for each in self.driver.drain("dead", 1)], body, seconds=SECONDS)

    def topics(self) -> list[TopicInfo]:
        return call_broker(self.broker.place, TOPICS, "")


def succeeds(work: Callable[[], Any]) -> bool:
    """Whether *work* does, and raises no error of the client."""
    try:
        work()
    except ClientError:
        return False
    return True


def refused(work: Callable[[], Any]) -> ClientError:
    """The error of *work*, which has to fail."""
    try:
        found = work()
    except ClientError as error:
        return error
    raise AssertionError(f"expected a client error, got {found}")


def normal(stage: Stage) -> None:
    """A message is delivered once and unchanged."""
    topic = stage.topic()
    stage.produce(topic)
    sent = stage.send(topic, "tea", tag="hot", keys=["k1"], properties={"colour": "green"})
    stage.consume(topic)
    (got,) = stage.driver.drain("s", 1)
    assert (got["id"], got["topic"], got["body"], got["tag"], got["keys"], got["properties"], got["attempt"]) == (
        sent["id"], topic, "tea", "hot", ["k1"], {"colour": "green"}, 1,
    )  # fmt: skip
    assert stage.driver.ask("receive", name="s", count=16, invisible=10_000)["messages"] == []


def ordered(stage: Stage) -> None:
    """The messages of each of 100 groups are delivered in order."""
    topic = stage.topic("FIFO")
    stage.produce(topic)
    for number in range(3):
        waiting = [
            stage.driver.start("send", name="p", topic=topic, body=f"{group}-{number}", group=f"g{group}")
            for group in range(100)
        ]
        for each in waiting:
            each.result(SECONDS)
    if "push" in stage.client.faults:
        stage.consume(topic)
        bodies = [message["body"] for message in stage.driver.drain("s", 300)]
    else:
        stage.push(topic)
        bodies = stage.handled(300)
    assert len(set(bodies)) == len(bodies) == 300
    for group in range(100):
        mine = [body for body in bodies if body.startswith(f"{group}-")]
        assert mine == [f"{group}-{number}" for number in range(3)]


def delayed(stage: Stage) -> None:
    """A delayed message is delivered at its time."""
    topic = stage.topic("DELAY")
    stage.produce(topic)
    due = CLOCK.now() / MICROSECONDS + 4
    stage.send(topic, "later", delay=4000)
    stage.consume(topic)
    (got,) = stage.driver.drain("s", 1)
    assert got["body"] == "later"
    assert due - 0.1 <= CLOCK.now() / MICROSECONDS < due + 6


def recalled(stage: Stage) -> None:
    """A recalled message is never delivered."""
    topic = stage.topic("DELAY")
    stage.produce(topic)
    sent = stage.send(topic, "never", delay=3000)
    kept = stage.send(topic, "kept", delay=3000)
    assert stage.driver.ask("recall", name="p", topic=topic, handle=sent["recall"])["id"] == sent["id"] != kept["id"]
    stage.consume(topic)
    assert [message["body"] for message in stage.driver.drain("s", 2, 8)] == ["kept"]


def transactions(stage: Stage) -> None:
    """Committed messages are delivered, rolled-back ones are not, and open transactions are checked."""
    topic = stage.topic("TRANSACTION")
    stage.produce(topic, check="commit")
    for body, end in (("committed", "commit"), ("rolled back", "rollback"), ("orphan", "")):
        stage.driver.ask("transaction", name="p", topic=topic, body=body, end=end)
    stage.consume(topic)
    assert sorted(message["body"] for message in stage.driver.drain("s", 3, 10)) == ["committed", "orphan"]
    assert {event.body for event in stage.driver.told("check", "p")} == {"orphan"}


def push(stage: Stage) -> None:
    """A push consumer handles each message once."""
    topic = stage.topic()
    stage.produce(topic)
    stage.push(topic)
    for number in range(30):
        stage.send(topic, str(number))
    assert Counter(stage.handled(30)) == Counter(str(number) for number in range(30))


def retried(stage: Stage) -> None:
    """A message whose listener fails is delivered again after a pause, and becomes a dead letter."""
    topic = stage.topic()
    stage.produce(topic)
    stage.push(topic, fail={"hard": 2, "impossible": 99})
    for body in ("easy", "hard", "impossible"):
        stage.send(topic, body)
    assert sorted(stage.handled(2)) == ["easy", "hard"]
    stage.dead("impossible")
    for body, attempts in (("hard", 3), ("impossible", 4)):
        begun = [event for event in stage.driver.told("begin", "c") if event.message["body"] == body]
        assert [event.message["attempt"] for event in begun] == list(range(1, attempts + 1))
        pauses = [later.at - earlier.at for earlier, later in itertools.pairwise(begun)]
        assert all(950 <= pause < 10_000 for pause in pauses), pauses


def ordered_failures(stage: Stage) -> None:
    """A message of a group is delivered only after the previous one is handled or dead."""
    topic = stage.topic("FIFO")
    stage.produce(topic)
    for number in range(5):
        stage.send(topic, str(number), group="one")
    stage.push(topic, fail={"1": 2, "3": 99})
    until(lambda: "4" in stage.driver.handled("c"), "the last of them", seconds=SECONDS)
    begun = [str(event.message["body"]) for event in stage.driver.told("begin", "c")]
    assert begun == sorted(begun), begun
    stage.dead("3")
    tries = [event.message["attempt"] for event in stage.driver.told("begin", "c") if event.message["body"] == "1"]
    assert tries == [1, 2, 3]


def filtered(stage: Stage) -> None:
    """Filters by tag and by SQL92 work."""
    topic = stage.topic()
    stage.produce(topic)
    for number, tag in enumerate("abcab"):
        stage.send(topic, f"{tag}{number}", tag=tag, properties={"number": str(number)})
    stage.consume(topic, ("TAG", "a || c"), name="tags")
    stage.consume(topic, ("SQL", "number > 1 AND TAGS <> 'c'"), name="sql")
    assert sorted(message["body"] for message in stage.driver.drain("tags", 4, 6)) == ["a0", "a3", "c2"]
    assert sorted(message["body"] for message in stage.driver.drain("sql", 3, 6)) == ["a3", "b4"]


def hidden(stage: Stage) -> None:
    """A changed invisible duration applies at once, and invalidates the old handle."""
    topic = stage.topic()
    stage.produce(topic)
    stage.send(topic, "once more")
    stage.consume(topic)
    (first,) = stage.driver.ask("receive", name="s", count=1, invisible=60_000)["messages"]
    stage.driver.ask("hide", name="s", number=first["number"], invisible=2000)
    (second,) = stage.driver.drain("s", 1)
    assert (first["attempt"], second["attempt"], first["id"] == second["id"]) == (1, 2, True)


def settled(stage: Stage) -> None:
    """The handle of an acknowledged message is invalid."""
    topic = stage.topic()
    stage.produce(topic)
    stage.send(topic, "done")
    stage.consume(topic)
    (got,) = stage.driver.drain("s", 1)
    error = refused(lambda: stage.driver.ask("ack", name="s", number=got["number"]))
    assert error.code == 40013, error


def largest(stage: Stage) -> None:
    """A body of 4 MiB is accepted, and one byte more is refused."""
    topic = stage.topic()
    stage.produce(topic)
    stage.consume(topic)
    refused(lambda: stage.send(topic, "too large", fill=4 * MEBIBYTE + 1))
    stage.send(topic, "large", fill=4 * MEBIBYTE)
    assert [message["body"] for message in stage.driver.drain("s", 1)] == ["large"]


def many_topics(stage: Stage) -> None:
    """A producer of five topics starts at once."""
    topics = [stage.topic(name=f"t{number}") for number in range(5)]
    begin = CLOCK.monotonic()
    stage.produce(*topics)
    for topic in topics:
        stage.send(topic, "x")
    assert CLOCK.monotonic() - begin < 10


def mistakes(stage: Stage) -> None:
    """An unknown topic and a wrong type of message are reported."""
    topic = stage.topic("FIFO")
    error = refused(lambda: (stage.produce("no-such-topic"), stage.send("no-such-topic", "x")))
    assert error.code == 40402 or "no-such-topic" in error.text, error
    stage.driver.ask("producer", name="q", topics=[topic])
    refused(lambda: stage.driver.ask("send", name="q", topic=topic, body="without a group"))


def restarted(stage: Stage) -> None:
    """After a restart of a killed broker all clients continue, and transactions are checked."""
    topic, halves = stage.topic(), stage.topic("TRANSACTION", "halves")
    stage.driver.ask("producer", name="h", topics=[halves], check="commit")
    stage.produce(topic)
    with_push = "push" not in stage.client.faults
    if with_push:
        stage.push(topic)
    stage.consume(topic)
    stage.send(topic, "before")
    stage.broker.kill()
    stage.broker.start()
    until(lambda: succeeds(lambda: stage.send(topic, "after")), "a send", seconds=SECONDS)
    assert {message["body"] for message in stage.driver.drain("s", 2, patient=True)} == {"before", "after"}
    if with_push:
        assert set(stage.handled(2)) == {"before", "after"}
    until(
        lambda: succeeds(lambda: stage.driver.ask("transaction", name="h", topic=halves, body="orphan", end="")),
        "a transaction",
    )
    stage.consume(halves, name="halves")
    assert [message["body"] for message in stage.driver.drain("halves", 1, patient=True)] == ["orphan"]


FLOWS: tuple[Callable[[Stage], None], ...] = (
    normal, ordered, delayed, recalled, transactions, push, retried, ordered_failures, filtered, hidden, settled,
    largest, many_topics, mistakes, restarted,
)  # fmt: skip
