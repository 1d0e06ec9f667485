"""The least that durable messages cost: a bare server of ``grpc.aio`` with one file, and a bare client.

A message has a call of its own, or many share one. A call that sends is answered when its messages are durable. A call
that receives gets what one call has sent, from a position in the file on; one that acknowledges stores a position. The
server has no topics, no keys, no receipts, no limits, and does not deliver again. ``python -m
millstream_peers.messaging.grpc_floor FILE``, run in ``benchmarks/``, prints the port that it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millstream.bench.messaging.task import AT_ONCE, BATCH, BODY, ConsumerMeter, MessagingTask, Meter
from millstream.bench.runner import Measurement
from millstream.messaging.async_batcher import AsyncBatcher
from millstream.messaging.batch_accumulator import BatchingLimits
from millstream.messaging.client.send_batcher import MAX_CALLS_IN_FLIGHT
from millstream_peers.durable_file import SIZE, DurableFile, join_records, split_records

_SERVICE = "floor.Messages"
_METHODS = {"send": "Send", "receive": "Receive", "acknowledge": "Ack"}

Call = Callable[[bytes], Awaitable[Any]]


class _Floor(msgspec.Struct, frozen=True):
    """The calls of a server, and its process."""

    send: Call
    receive: Call
    acknowledge: Call
    process: int


def send_singly_floor(work: MessagingTask) -> Measurement:
    """Each message in a call of its own."""
    return _run(work, lambda floor: _send(floor, floor.send, work.count))


def send_gathered_floor(work: MessagingTask) -> Measurement:
    """Each message in a send of its own; those of the same moment go in one call."""
    return _run(work, lambda floor: _send(floor, _gathering(floor.send), work.count))


def send_batches_floor(work: MessagingTask) -> Measurement:
    """A thousand messages a call, four calls under way."""

    async def send(floor: _Floor) -> Measurement:
        meter = Meter([floor.process])
        return meter.sample(work.count, await _fill(floor, work.count))

    return _run(work, send)


def receive_batches_floor(work: MessagingTask) -> Measurement:
    """A thousand messages a call, acknowledged together."""

    async def receive(floor: _Floor) -> Measurement:
        await _fill(floor, work.count)
        calls, got, position = ConsumerMeter([floor.process]), 0, 0
        while got < work.count:
            bodies, position = await calls.receive(_receive(floor, position))
            await calls.ack(floor.acknowledge(position.to_bytes(8, "little")))
            assert set(bodies) == {BODY}, "a message was damaged"
            got += len(bodies)
        return calls.sample(work.count)

    return _run(work, receive)


def _run(work: MessagingTask, measure: Callable[[_Floor], Awaitable[Measurement]]) -> Measurement:
    """What *measure* finds with a server of its own, whose file then has all messages."""

    async def run(path: Path) -> Measurement:
        async with _serving(path) as floor:
            return await measure(floor)

    path = Path(tempfile.mkdtemp(dir=work.folder)) / "messages"
    sample = asyncio.run(run(path))
    stored = path.read_bytes().count(BODY)
    assert stored == work.count, f"{stored} of {work.count} messages are in the file"
    return sample


async def _send(floor: _Floor, send_one: Call, count: int) -> Measurement:
    turns, delays, meter = iter(range(count)), list[float](), Meter([floor.process])

    async def send() -> None:
        for _ in turns:
            begin = meter.now()
            await send_one(BODY)
            delays.append(meter.now() - begin)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return meter.sample(count, delays)


async def _fill(floor: _Floor, count: int) -> list[float]:
    """Send *count* messages in batches; how long each call took (seconds)."""
    turns, delays, meter = iter(range(0, count, BATCH)), list[float](), Meter(())

    async def send() -> None:
        for begin in turns:
            started = meter.now()
            await floor.send(join_records([BODY] * min(BATCH, count - begin)))
            delays.append(meter.now() - started)

    await asyncio.gather(*(send() for _ in range(4)))
    return delays


async def _receive(floor: _Floor, position: int) -> tuple[list[bytes], int]:
    """The messages of the call that was stored at *position*, and the position after them."""
    data = await floor.receive(position.to_bytes(8, "little"))
    return split_records(data), position + SIZE + len(data)


def _gathering(call: Call) -> Call:
    """Sends that share calls, as our client does it."""

    async def run(bodies: Sequence[bytes]) -> Sequence[None]:
        await call(join_records(bodies))
        return [None] * len(bodies)

    limits = BatchingLimits(max_in_flight=MAX_CALLS_IN_FLIGHT)
    batcher: AsyncBatcher[bytes, None] = AsyncBatcher(run, limits, failure=lambda error: RuntimeError(repr(error)))
    return batcher.submit


@contextlib.asynccontextmanager
async def _serving(path: Path) -> AsyncIterator[_Floor]:
    """A new server that keeps messages in *path*."""
    import grpc.aio

    with _server_process(path) as (port, process):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls: dict[str, Any] = {
                name: channel.unary_unary(f"/{_SERVICE}/{method}") for name, method in _METHODS.items()
            }
            yield _Floor(**calls, process=process)


@contextlib.contextmanager
def _server_process(path: Path) -> Iterator[tuple[int, int]]:
    command = [sys.executable, str(Path(__file__).resolve()), str(path)]
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), *filter(None, sys.path)])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline()), server.pid
        finally:
            server.terminate()


async def _serve(path: Path) -> None:
    import grpc.aio

    messages, positions = DurableFile(path), DurableFile(path.with_suffix(".positions"))
    file = os.open(path, os.O_RDONLY)

    async def send(request: bytes, _context: Any) -> bytes:
        await messages.append(request)
        return b""

    async def receive(request: bytes, _context: Any) -> bytes:
        position = int.from_bytes(request, "little")
        size = int.from_bytes(os.pread(file, SIZE, position), "little")
        return os.pread(file, size, position + SIZE)

    async def acknowledge(request: bytes, _context: Any) -> bytes:
        await positions.append(request)
        return b""

    server = grpc.aio.server()
    calls = dict(zip(_METHODS.values(), (send, receive, acknowledge), strict=True))
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
