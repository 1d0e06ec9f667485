"""RocketMQ's own Python client against our broker, in a process of its own: it brings threads and a log file.

Run as a program with ``send|receive HOST:PORT TOPIC COUNT`` this module is that process. It prints ``ready`` when all
is there that is not measured, and begins when it gets a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from millstream.bench.messaging.task import AT_ONCE, BODY, MessagingTask, Meter, delay_figures
from millstream.bench.runner import Measurement

_READY = "ready\n"


def run_official(work: MessagingTask, what: str) -> Measurement:
    """*what* (``send`` or ``receive``) with the official client."""
    command = [sys.executable, __file__, what, work.place, work.topic(), str(work.count)]
    environment = {**os.environ, "HOME": str(work.folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as client:
        assert client.stdout is not None
        if _READY not in client.stdout:  # reads as far as that
            raise subprocess.CalledProcessError(client.wait(), command)
        meter = Meter(work.servers)
        printed, _ = client.communicate("begin\n")
        server = meter.sample(work.count).figures["server CPU µs/message"]
    if client.returncode:
        raise subprocess.CalledProcessError(client.returncode, command)
    found = json.loads(printed.splitlines()[-1])
    return Measurement(found.pop("rate"), {**found, "server CPU µs/message": server})


def _configuration(place: str) -> Any:
    from rocketmq import ClientConfiguration, Credentials

    return ClientConfiguration(place, Credentials())


def _message(topic: str) -> Any:
    from rocketmq import Message

    message = Message()
    message.topic, message.body = topic, BODY
    return message


def _await_begin() -> None:
    print(_READY, end="", flush=True)
    sys.stdin.readline()


def _started_producer(place: str, topic: str) -> Any:
    from rocketmq import Producer

    producer = Producer(_configuration(place), (topic,))
    producer.startup()
    return producer


def _send(place: str, topic: str, count: int) -> dict[str, float]:
    producer = _started_producer(place, topic)
    _await_begin()
    return _fill(producer, topic, count)


def _fill(producer: Any, topic: str, count: int) -> dict[str, float]:
    meter, delays = Meter(()), list[float]()
    for begin in range(0, count, AT_ONCE):
        started = meter.now()
        futures = [producer.send_async(_message(topic)) for _ in range(min(AT_ONCE, count - begin))]
        for future in futures:
            future.result()
            delays.append(meter.now() - started)
    return _figures(meter, count, delays)


def _receive(place: str, topic: str, count: int) -> dict[str, float]:
    from rocketmq import FilterExpression, SimpleConsumer

    _fill(_started_producer(place, topic), topic, count)
    consumer = SimpleConsumer(_configuration(place), "bench", {topic: FilterExpression()}, await_duration=5)
    consumer.startup()
    _await_begin()
    meter, receives, acks, got = Meter(()), list[float](), list[float](), 0
    while got < count:
        begin = meter.now()
        messages = consumer.receive(1024, 60)
        receives.append(meter.now() - begin)
        for message in messages:
            begin = meter.now()
            consumer.ack(message)
            acks.append(meter.now() - begin)
        got += len(messages)
    figures = {**_figures(meter, count, receives), "rate": count / sum(receives), "acknowledged/s": count / sum(acks)}
    return figures | {f"ack {name}": value for name, value in delay_figures(acks).items()}


def _figures(meter: Meter, count: int, delays: list[float]) -> dict[str, float]:
    sample = meter.sample(count)
    client = sample.figures["client CPU µs/message"]
    return {"rate": sample.value, "client CPU µs/message": client, **delay_figures(delays)}


if __name__ == "__main__":
    _work = {"send": _send, "receive": _receive}[sys.argv[1]]
    print(json.dumps(_work(sys.argv[2], sys.argv[3], int(sys.argv[4]))), flush=True)
    os._exit(0)  # the client's own threads do not all end
