"""Clients of five languages over one topic: what each sends, each receives, in the order of its message groups."""

from __future__ import annotations

import contextlib
from pathlib import Path

from official.clients import SECONDS, Drivers
from official.known import NEWEST

from millstream.testing.brokers import IMPATIENT, BrokerProcess
from millstream.testing.waiting import until

EACH = 10
FILTER = {"across": ["TAG", "*"]}


def test_p4_what_each_client_sends_each_receives_whole_and_in_order(tmp_path: Path, drivers: Drivers) -> None:
    broker = BrokerProcess(f"sqlite:///{tmp_path / 'log.db'}", IMPATIENT)
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill)
        broker.start()
        broker.create_topic("across", "FIFO", 1)  # Node's client knows one queue
        found = {client.language: stack.enter_context(drivers.start(client, broker.place)) for client in NEWEST}
        for driver in found.values():
            driver.ask("producer", name="p", topics=["across"])
        sent: dict[str, tuple[str, str]] = {}
        for number in range(EACH):
            for language, driver in found.items():
                body, text = f"{language}-{number}", f"grüße {language} \N{SNOWMAN}"
                answer = driver.ask(
                    "send", name="p", topic="across", body=body, group=language, tag=language, properties={"text": text}
                )
                sent[answer["id"]] = body, text
        assert len(sent) == EACH * len(NEWEST)
        for client in NEWEST:
            driver, group = found[client.language], f"of-{client.language}"
            if "push" in client.faults:
                driver.ask("simple", name="c", group=group, filters=FILTER, **{"await": 2000})
                messages = driver.drain("c", len(sent))
            else:
                driver.ask("push", name="c", group=group, filters=FILTER)
                until(lambda driver=driver: len(driver.handled("c")) >= len(sent), "all", seconds=SECONDS)
                messages = [dict(event.message) for event in driver.told("end", "c")]
            got = {each["id"]: (each["body"], each["properties"]["text"]) for each in messages}
            assert got == sent
            assert len(messages) == len(sent), "each of them once"
            for language in found:
                mine = [each for each in messages if each["group"] == language]
                assert [each["body"] for each in mine] == [f"{language}-{number}" for number in range(EACH)]
                assert {(each["tag"], each["attempt"]) for each in mine} == {(language, 1)}
