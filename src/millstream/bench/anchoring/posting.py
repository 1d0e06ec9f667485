"""A client that costs little beside the server it measures: many connections, one thread, no parsing to speak of."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator, Sequence

CONNECTIONS = 64
BULK = 10_000


def post_each(requests: Sequence[bytes], port: int) -> None:
    """Post each of *requests* by itself, over all connections at once; every one must be taken."""
    asyncio.run(_post_each(iter(requests), port))


def post_bulk(requests: Sequence[bytes], port: int) -> None:
    """Post *requests* in bulk, as many at once as are allowed; every one must be taken."""
    for start in range(0, len(requests), BULK):
        chunk = requests[start : start + BULK]
        connection = http.client.HTTPConnection("127.0.0.1", port)
        kind = {"Content-Type": "application/jsonl"}
        connection.request("POST", "/sidetree/v1/operations/bulk", b"\n".join(chunk), kind)
        outcomes = connection.getresponse().read().splitlines()
        assert len(outcomes) == len(chunk) and all(b'"state"' in line for line in outcomes), outcomes[:1]
        connection.close()


async def _post_each(requests: Iterator[bytes], port: int) -> None:
    await asyncio.gather(*(_connection(requests, port) for _ in range(CONNECTIONS)))


async def _connection(requests: Iterator[bytes], port: int) -> None:
    fixed = "POST /sidetree/v1/operations HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in requests:
        head = f"{fixed}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode("ascii") + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r")[0]))
    writer.close()
