"""The least that durable sends cost: a bare server of ``grpc.aio`` that appends to a file, and a bare client.

Each message has a call of its own, or those of the same moment share one, as our client does it. The server has no
topics, no keys, no receipts, and no limits; a message is durable when its call returns. ``python -m
millstream_peers.messaging.grpc_floor FILE``, run in ``benchmarks/``, prints the port that it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from millstream.bench.messaging.task import AT_ONCE, BODY, MessagingTask, Meter
from millstream.bench.runner import Measurement
from millstream.messaging.async_batcher import AsyncBatcher
from millstream.messaging.batch_accumulator import BatchingLimits
from millstream.messaging.client.send_batcher import MAX_CALLS_IN_FLIGHT
from millstream_peers.durable_file import DurableFile

_SERVICE, _METHOD = "floor.Messages", "Send"


Send = Callable[[bytes], Awaitable[object]]


def send_singly_floor(work: MessagingTask) -> Measurement:
    """Each message in a call of its own, to a server of its own."""
    return _measured(work, lambda call: call)


def send_gathered_floor(work: MessagingTask) -> Measurement:
    """Each message in a send of its own; those of the same moment go in one call, to a server of its own."""
    return _measured(work, _gathering)


def _measured(work: MessagingTask, sends_by: Callable[[Send], Send]) -> Measurement:
    folder = Path(tempfile.mkdtemp(dir=work.folder))
    with _serving(folder / "messages") as (port, process):
        sample = asyncio.run(_send(port, process, work.count, sends_by))
    stored = (folder / "messages").read_bytes().count(BODY)
    assert stored == work.count, f"{stored} of {work.count} messages are in the file"
    return sample


async def _send(port: int, process: int, count: int, sends_by: Callable[[Send], Send]) -> Measurement:
    import grpc.aio

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        send_one = sends_by(channel.unary_unary(f"/{_SERVICE}/{_METHOD}"))
        turns, delays, meter = iter(range(count)), list[float](), Meter([process])

        async def send() -> None:
            for _ in turns:
                begin = meter.now()
                await send_one(BODY)
                delays.append(meter.now() - begin)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return meter.sample(count, delays)


def _gathering(call: Send) -> Send:
    """Sends that share calls: each body after its length."""

    async def run(bodies: Sequence[bytes]) -> Sequence[None]:
        await call(b"".join([len(body).to_bytes(4, "little") + body for body in bodies]))
        return [None] * len(bodies)

    batcher: AsyncBatcher[bytes, None] = AsyncBatcher(
        run, BatchingLimits(max_in_flight=MAX_CALLS_IN_FLIGHT), failure=lambda error: RuntimeError(repr(error))
    )
    return batcher.submit


@contextlib.contextmanager
def _serving(path: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a new server."""
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

    messages = DurableFile(path)

    async def send(request: bytes, _context: Any) -> bytes:
        await messages.append(request)
        return b""

    server = grpc.aio.server()
    handlers: dict[str, Any] = {_METHOD: grpc.unary_unary_rpc_method_handler(send)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
