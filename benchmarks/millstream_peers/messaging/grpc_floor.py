"""The least that a call a message costs: a bare server of ``grpc.aio`` that appends to a file, and a bare client.

It has no topics, no keys, no receipts, and no limits; a message is durable when its call returns. ``python -m
millstream_peers.messaging.grpc_floor FILE``, run in ``benchmarks/``, prints the port that it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.bench.messaging.task import AT_ONCE, BODY, MessagingTask, Meter
from millstream.bench.runner import Measurement
from millstream_peers.durable_file import DurableFile

_SERVICE, _METHOD = "floor.Messages", "Send"


def send_singly_floor(work: MessagingTask) -> Measurement:
    """Each message in a call of its own, to a server of its own."""
    folder = Path(tempfile.mkdtemp(dir=work.folder))
    with _serving(folder / "messages") as (port, process):
        sample = asyncio.run(_send_singly(port, process, work.count))
    assert (folder / "messages").stat().st_size == work.count * (4 + len(BODY)), "every message is in the file"
    return sample


async def _send_singly(port: int, process: int, count: int) -> Measurement:
    import grpc.aio

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
        turns, delays, meter = iter(range(count)), list[float](), Meter([process])

        async def send() -> None:
            for _ in turns:
                begin = meter.now()
                await call(BODY)
                delays.append(meter.now() - begin)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return meter.sample(count, delays)


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
