"""The client as part of somebody's process: what an import does, what a fork does, and other event loops."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.testing.brokers import BrokerProcess

CHILDREN = Path(__file__).parent / "children"

SLOW_STEP = re.compile(r"(WARNING:asyncio:)?Executing <.*> took [\d.]+ seconds")
"""What asyncio says in its development mode of a machine that is busy with something else."""

IMPORTS = """
import json, os, sys, threading
opened = []
def watch(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) and "__pycache__" not in str(arguments[0]):
        opened.append(str(arguments[0]))
sys.addaudithook(watch)
import millstream.messaging.client
import millstream.messaging.client.blocking
from millstream.messaging.client import Producer
Producer("127.0.0.1:1", ["t"])
print(json.dumps([[thread.name for thread in threading.enumerate()], opened, "grpc" in sys.modules,
    [name for name in sys.modules if name.startswith("opentelemetry")], len(os.listdir("/proc/self/task"))]))
"""

OTHER_LOOP = """
import asyncio, sys
import uvloop
from millstream.messaging.client import Message, Producer, PushConsumer, SimpleConsumer

async def main(place):
    got, both = [], asyncio.Event()
    async def listen(message):
        got.append(message.body)
        if len(got) == 2:
            both.set()
    async with Producer(place, ["loops"], linger=0.01) as producer, PushConsumer(place, "g", {"loops": "*"}, listen):
        await asyncio.gather(producer.send(Message("loops", b"a")), producer.send(Message("loops", b"b")))
        await asyncio.wait_for(both.wait(), 20)
    async with SimpleConsumer(place, "h", {"loops": "*"}, await_duration=1) as consumer:
        messages = await consumer.receive(invisible=10)
        await consumer.ack(*messages)
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    print(sorted(got), len(messages))

uvloop.run(main(sys.argv[1]))
"""

TWO_LOOPS = """
import asyncio, sys, threading
from millstream.messaging.client import Message, Producer

async def main(place):
    async with Producer(place, ["loops"]) as producer:
        await asyncio.gather(*(producer.send(Message("loops", b"x")) for _ in range(50)))

asyncio.run(main(sys.argv[1]))
asyncio.run(main(sys.argv[1]))
threads = [threading.Thread(target=lambda: asyncio.run(main(sys.argv[1]))) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""

SIDE_BY_SIDE = """
import logging, sys, threading
from millstream.messaging.client import Message
from millstream.messaging.client.blocking import Producer, PushConsumer, SimpleConsumer

logging.basicConfig(level=logging.WARNING)

def use(place, number):
    for turn in range(3):
        with Producer(place, ["loops"]) as producer:
            producer.send(Message("loops", b"x"))
        with SimpleConsumer(place, f"simple-{number}", {"loops": "*"}, await_duration=0) as consumer:
            consumer.ack(*consumer.receive(10))
        with PushConsumer(place, f"push-{number}", {"loops": "*"}, lambda message: None):
            pass

threads = [threading.Thread(target=use, args=(sys.argv[1], number)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def run(*arguments: str) -> str:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_an_import_starts_no_thread_and_opens_no_file_and_needs_no_grpc() -> None:
    threads, opened, has_grpc, telemetry, tasks = json.loads(run("-c", IMPORTS))
    assert threads == ["MainThread"]
    assert opened == []
    assert not has_grpc
    assert not telemetry
    assert tasks == 1


@pytest.fixture(scope="module")
def place(broker: BrokerProcess) -> str:
    """Where a broker with the topics of the children is."""
    for topic in ("forks", "loops"):
        broker.create_topic(topic)
    return str(broker.place)


def test_after_a_fork_clients_refuse_with_advice_and_those_of_the_parent_go_on(place: str) -> None:
    lines = run(str(CHILDREN / "forked.py"), place, "before").splitlines()
    assert lines[0] == "parent sent"
    assert lines[1].startswith("old client refused: gRPC does not work after a fork")
    assert lines[2].startswith("child refused: gRPC does not work after a fork")
    assert lines[3:] == ["child ended with 0", "parent sent"]


def test_a_client_that_has_ended_is_a_client_that_was_there(place: str) -> None:
    lines = run(str(CHILDREN / "forked.py"), place, "late").splitlines()
    assert lines[1].startswith("child refused: gRPC does not work after a fork")
    assert lines[2] == "child ended with 0"


def test_a_child_may_use_clients_where_its_parent_has_used_none(place: str) -> None:
    assert run(str(CHILDREN / "forked.py"), place, "after").splitlines() == ["child sent", "child ended with 0"]


def test_clients_run_under_uvloop(place: str) -> None:
    pytest.importorskip("uvloop")
    assert run("-W", "error", "-c", OTHER_LOOP, place) == "[b'a', b'b'] 2\n"


def test_clients_run_in_one_loop_after_another_and_in_loops_of_several_threads(place: str) -> None:
    assert run("-c", TWO_LOOPS, place) == "done\n"


def test_blocking_clients_that_come_and_go_side_by_side_leave_nothing_in_the_log_of_their_process(place: str) -> None:
    """A loop that ends before gRPC has heard the end of its calls has asyncio complain about them later on."""
    command = [sys.executable, "-X", "dev", "-c", SIDE_BY_SIDE, place]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    said = [line for line in result.stderr.splitlines() if not SLOW_STEP.fullmatch(line)]
    assert (result.stdout, said) == ("", [])
