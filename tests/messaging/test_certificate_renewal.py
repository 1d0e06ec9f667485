"""A broker's certificate is renewed while it serves."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from millstream.core.address import Address
from millstream.log import open_store
from millstream.messaging.broker.security.tls import read_tls
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.broker.settings import BrokerSettings
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import ClientError, Intervals, Message, Options, Producer, Tls
from support.certificates import Authority


class Files:
    """The files of a server's certificate in *folder*, from one authority after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.settings = BrokerSettings(tls_certificate=str(folder / "served.pem"), tls_key=str(folder / "served.key"))

    def renew(self, name: str) -> bytes:
        """Put a certificate of a new authority there; the certificate of that authority."""
        (self._folder / name).mkdir()
        authority = Authority(self._folder / name)
        certificate, key = authority.issue("server")
        shutil.copyfile(key, self.settings.tls_key)
        shutil.copyfile(certificate, self.settings.tls_certificate)
        return authority.path.read_bytes()


def producer(port: int, ca: bytes) -> Producer:
    options = Options(tls=Tls(ca), startup_timeout=3.0, intervals=Intervals(first_heartbeat=60.0))
    return Producer(f"localhost:{port}", ["t"], options=options)


async def is_served(port: int, ca: bytes) -> bool:
    """Whether a new client that trusts *ca* alone can send."""
    try:
        async with producer(port, ca) as client:
            await client.send(Message("t", b"x"))
    except ClientError:
        return False
    return True


def test_who_connects_is_shown_the_new_certificate_and_who_is_connected_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    first = files.renew("first")
    tls = read_tls(files.settings)

    async def test() -> None:
        with open_store("memory://") as store:
            async with BrokerServer(store, Address("127.0.0.1", 0), tls=tls) as server:
                await server.supervisor.core.create_topic(TopicSpec("t"))
                async with producer(server.port, first) as old:
                    await old.send(Message("t", b"before"))
                    second = files.renew("second")
                    assert await is_served(server.port, second)
                    assert not await is_served(server.port, first)
                    await old.send(Message("t", b"after"))
                    Path(files.settings.tls_key).write_text("half a k")
                    assert await is_served(server.port, second)
                    assert await is_served(server.port, second)
                    third = files.renew("third")
                    assert await is_served(server.port, third)

    asyncio.run(test())
    assert sum("keeps its present certificate" in record.message for record in caplog.records) == 1
