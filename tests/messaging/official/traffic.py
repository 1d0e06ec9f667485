"""Messages that flow through official clients while a broker is harmed, and what must hold of them afterwards."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from official.clients import SECONDS, ClientError, Driver, OfficialClient
from official.moving_broker import MovingBroker

from millstream.log import LogSpec, open_store
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker import admin
from millstream.messaging.broker.storage.journal import JOURNAL
from millstream.messaging.broker.storage.journal_events import Finished, MessagesLeased, read_event
from millstream.messaging.broker.storage.wire_codec import message_id
from millstream.messaging.errors import UnreachableError
from millstream.testing.brokers import BrokerProcess
from millstream.testing.waiting import until

GROUPS = 5
TOPICS = {"traffic": "NORMAL", "ordered": "FIFO"}
GROUP = "traffic"


class Traffic:
    """*clients* that send to a topic and to an ordered one and handle what comes, all the time while the block is open.

    Each sends one message after another, to each topic in turn, with *pause* seconds between. What was not confirmed it
    sends again, as another message: the first may have been stored all the same.
    """

    def __init__(
        self,
        broker: BrokerProcess | MovingBroker,
        clients: Sequence[tuple[OfficialClient, Driver]],
        *,
        pause: float = 0.02,
    ) -> None:
        self._pause = pause
        self._broker, self._clients = broker, clients
        self._stop, self._stop_receiving = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()
        self.confirmed: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.refused = 0
        self._received: list[tuple[str, str]] = []  # topic and body, by simple consumers

    def __enter__(self) -> Self:
        for client, driver in self._clients:
            driver.ask("producer", name="p", topics=list(TOPICS))
            filters = {topic: ["TAG", "*"] for topic in TOPICS}
            if "push" in client.faults:
                driver.ask("simple", name="c", group=GROUP, filters=filters, **{"await": 1000})
                self._begin(self._receive, driver)
            else:
                driver.ask("push", name="c", group=GROUP, filters=filters)
            self._begin(self._send, client, driver)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._stop_receiving.set()
        for thread in self._threads:
            thread.join(SECONDS)

    def settle(self) -> None:
        """Send no more, and return when everything confirmed is handled and the broker knows it."""
        self._stop.set()
        until(lambda: self._errors or not self.missing(), "what was confirmed", seconds=2 * SECONDS)
        assert not self._errors, self._errors
        until(self._is_quiet, "acknowledgements", seconds=SECONDS)
        self._stop_receiving.set()

    def sent(self) -> int:
        """How many messages were confirmed."""
        return sum(map(len, self.confirmed.values()))

    def missing(self) -> set[tuple[str, str]]:
        """Confirmed messages, by topic and body, that no client has handled."""
        handled = {(topic, body) for topic, body in self.handled()}
        return {(topic, body) for topic, bodies in self.confirmed.items() for body in bodies} - handled

    def handled(self) -> Iterator[tuple[str, str]]:
        """Topic and body of what clients have begun to handle, each time, in the order of each client."""
        yield from list(self._received)
        for _, driver in self._clients:
            for event in driver.told("begin", "c"):
                yield str(event.message["topic"]), str(event.message["body"])

    def check(self, url: str = "") -> dict[str, int]:
        """Assert what must hold; figures of what happened. The broker's store, or its copy at *url*, is at rest."""
        lent: defaultdict[tuple[str, int], int] = defaultdict(int)
        finished: set[tuple[str, int]] = set()
        with open_store(url or self._broker.url, read_only=True) as store:
            names = {
                (topic, message.id): message_id(message)
                for topic in TOPICS
                for batch in store.log(LogSpec(topic), create=False).read()
                for message in batch
            }
            for batch in store.log(JOURNAL, create=False).read():
                for message in batch:
                    event = read_event(message)
                    if isinstance(event, MessagesLeased) and event.topic in TOPICS:
                        for first, last in event.ids:
                            for number in range(first, last + 1):
                                place = event.topic, number
                                assert place not in finished, f"{place} was given again after it was done"
                                lent[place] += 1
                    elif isinstance(event, Finished) and event.topic in TOPICS:
                        assert not event.dead, f"{event.ids} of {event.topic} went to the dead letters"
                        finished.update((event.topic, n) for first, last in event.ids for n in range(first, last + 1))
        self._check_attempts({names[place]: count for place, count in lent.items()})
        self._check_order()
        again = sum(count - 1 for count in lent.values())
        return {"confirmed": self.sent(), "stored": len(names), "delivered again": again}

    def _check_attempts(self, lent: Mapping[str, int]) -> None:
        """No attempt was shown twice, and none beyond the deliveries that the journal knows."""
        shown: defaultdict[str, list[int]] = defaultdict(list)
        for _, driver in self._clients:
            for event in driver.told("begin", "c"):
                shown[event.message["id"]].append(event.message["attempt"])
        for message, attempts in shown.items():
            assert len(set(attempts)) == len(attempts), f"{message}: attempts {attempts}"
            assert max(attempts) <= lent[message], f"{message}: attempts {attempts}, delivered {lent[message]} times"

    def _check_order(self) -> None:
        """The messages of each group were begun in order, for the first time; over all clients."""
        begun = [
            (event.at, str(event.message["body"]))
            for _, driver in self._clients
            for event in driver.told("begin", "c")
            if event.message["topic"] == "ordered"
        ]
        first = dict.fromkeys(body for _, body in sorted(begun, key=lambda pair: pair[0]))
        by_group: defaultdict[str, list[int]] = defaultdict(list)
        for body in first:
            group, _, number = body.rpartition("-")
            by_group[group].append(int(number))
        for group, numbers in by_group.items():
            assert numbers == sorted(numbers), f"group {group}: {numbers}"

    def _begin(self, work: object, *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:  # shown by settle()
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _send(self, client: OfficialClient, driver: Driver) -> None:
        for number in itertools.count():
            for topic in TOPICS:
                group = f"{client}-{number % GROUPS}"
                body = f"{group}-{number}"
                while not self._is_sent(driver, topic, body, group if topic == "ordered" else ""):
                    if self._stop.is_set():
                        return
                with self._lock:
                    self.confirmed[topic].add(body)
            if self._stop.wait(self._pause):
                return

    def _is_sent(self, driver: Driver, topic: str, body: str, group: str) -> bool:
        try:
            driver.ask("send", name="p", topic=topic, body=body, group=group)
        except ClientError:
            with self._lock:
                self.refused += 1
            return False
        return True

    def _receive(self, driver: Driver) -> None:
        while not self._stop_receiving.is_set():
            try:
                for message in driver.ask("receive", name="c", count=16, invisible=5000)["messages"]:
                    self._received.append((message["topic"], message["body"]))
                    driver.ask("ack", name="c", number=message["number"])
            except ClientError:
                self._stop_receiving.wait(0.2)

    def _is_quiet(self) -> bool:
        try:
            found = call_broker(self._broker.place, admin.GROUPS, GROUP)
        except UnreachableError:
            return False
        return all(info.lag == info.in_flight == 0 for info in found)
