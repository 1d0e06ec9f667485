"""The blocking client: generated from the asynchronous one, used from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from millstream.messaging.client import Message, NotRunningError, Options, Received, ResourceNotFoundError, loop_thread
from millstream.messaging.client.blocking import Producer, PushConsumer, SimpleConsumer
from millstream.messaging.client.generate import TARGET, generate
from millstream.messaging.client.loop_thread import LoopThread
from millstream.testing.brokers import BrokerProcess

QUICK = Options(startup_timeout=5.0)


def test_what_is_checked_in_is_what_is_generated() -> None:
    assert TARGET.read_text("utf-8") == generate()


def test_threads_share_a_client(broker: BrokerProcess) -> None:
    broker.create_topic("threads")
    at = str(broker.place)
    with Producer(at, ["threads"], options=QUICK) as producer, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: producer.send(Message("threads", b"%d" % number)), range(20)))
        producer.send_many([Message("threads", b"20"), Message("threads", b"21")])
    got: set[bytes] = set()
    with SimpleConsumer(at, "g", {"threads": "*"}, await_duration=0.5) as consumer:
        for message in consumer:
            got.add(message.body)
            consumer.ack(message)
            if len(got) == 22:
                break
    assert got == {b"%d" % number for number in range(22)}


def test_listeners_and_checkers_may_block(broker: BrokerProcess) -> None:
    broker.create_topic("blocking-halves", "TRANSACTION")
    at = str(broker.place)
    seen: dict[bytes, str] = {}
    all_there = threading.Event()

    def listen(message: Received) -> None:
        seen[message.body] = threading.current_thread().name
        if len(seen) == 2:
            all_there.set()

    with (
        Producer(at, ["blocking-halves"], checker=lambda _message: "commit", options=QUICK) as producer,
        PushConsumer(at, "g", {"blocking-halves": "*"}, listen, options=QUICK),
    ):
        with producer.begin(Message("blocking-halves", b"committed")):
            pass
        with pytest.raises(ZeroDivisionError), producer.begin(Message("blocking-halves", b"rolled back")):
            raise ZeroDivisionError
        producer.begin(Message("blocking-halves", b"orphan"))
        assert all_there.wait(20)
    assert set(seen) == {b"committed", b"orphan"}
    assert "MainThread" not in seen.values()


def test_a_client_that_does_not_run_refuses_and_leaves_no_thread(broker: BrokerProcess) -> None:
    producer = Producer(str(broker.place), ["absent"], options=QUICK)
    with pytest.raises(NotRunningError):
        producer.send(Message("absent", b"x"))
    with pytest.raises(ResourceNotFoundError):
        producer.start()
    producer.close()
    assert "millstream-client" not in [thread.name for thread in threading.enumerate()]


def in_thread(work: Callable[[], object]) -> Future[object]:
    """The result of *work* in a thread that holds up nobody if it hangs."""
    result: Future[object] = Future()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return result


def test_threads_that_use_a_client_while_it_is_closed_end_with_an_error() -> None:
    async def nothing() -> None:
        """Work that takes no time."""

    def use(loop: LoopThread) -> None:
        while True:
            loop.run(nothing())

    for _ in range(20):
        loop = LoopThread()
        loop.start()
        using = [in_thread(partial(use, loop)) for _ in range(3)]
        for closing in [in_thread(loop.stop) for _ in range(2)]:
            closing.result(10)
        for each in using:
            assert isinstance(each.exception(10), NotRunningError)


def test_work_that_does_not_end_is_cancelled_when_a_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_LAST_SECONDS", 0.01)
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    loop = LoopThread()
    loop.start()
    waiting = in_thread(lambda: loop.run(wait_for_ever()))
    assert begun.wait(10)
    loop.stop()
    assert isinstance(waiting.exception(10), NotRunningError)
