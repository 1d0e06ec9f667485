"""The servers of the peers: each private, on loopback, durable as far as it can be."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from millstream.testing.programs import find_program, run_program
from millstream.testing.services import greets


class Redis:
    """Redis with the append-only file synced before each reply."""

    name = package = "redis-server"

    def prepare(self, folder: Path) -> None:  # noqa: ARG002
        find_program("redis-server", self.package)

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [
            find_program("redis-server", self.package), "--port", str(port), "--bind", "127.0.0.1",
            "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no",
            "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip

    def answers(self, port: int) -> bool:
        import redis

        with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as client:
            return bool(client.ping())
        return False

    def url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}"


class Nats:
    """NATS with JetStream in a file, which is synced before each reply where the version can do that."""

    name = package = "nats-server"

    def prepare(self, folder: Path) -> None:
        version = run_program([find_program("nats-server", self.package), "--version"])
        found = re.search(r"v(\d+)\.(\d+)", version)
        sync = "sync_interval: always, " if found and (int(found[1]), int(found[2])) >= (2, 10) else ""
        store = f'jetstream {{ {sync}store_dir: "{folder}/jetstream", max_mem: 64M, max_file: 20G }}\n'
        (folder / "server.conf").write_text(store, "utf-8")

    def command(self, folder: Path, port: int) -> Sequence[str]:
        config = str(folder / "server.conf")
        return [find_program("nats-server", self.package), "-c", config, "-a", "127.0.0.1", "-p", str(port)]

    def answers(self, port: int) -> bool:
        return greets(port)

    def url(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"


def clear_redis(url: str) -> None:
    """Drop all streams."""
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushall()
