"""Who takes part: what each is called, which server it needs, and about how fast it is (which sizes its load)."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import msgspec

from millstream.bench.log.ours import OurReceiver, OurSender
from millstream.bench.log.protocol import QueueLocation, QueueReceiver, QueueSender
from millstream.bench.peers import load_peers
from millstream.core.errors import InputError
from millstream.testing.services import ServerDefinition


class LogContender(msgspec.Struct, frozen=True):
    """One that takes part. ``rates`` are messages a second by payload; ``module`` holds its classes, with *classes*.

    ``in_bucket`` is whether it writes to a bucket, ``is_far`` whether each request of that takes longer than it does.
    """

    title: str
    server: str
    rates: Mapping[int, float]
    module: str
    classes: str
    suffix: str = ""
    in_bucket: bool = False
    is_far: bool = False

    @property
    def in_memory(self) -> bool:
        """Whether no other process sees what it writes."""
        return self.in_bucket and not self.server

    def rate(self, payload: int) -> float:
        """Messages a second with *payload* bytes each, about."""
        return self.rates[max((size for size in self.rates if size <= payload), default=min(self.rates))]


class LogPeers(Protocol):
    """What the module of the peers has for this benchmark."""

    CONTENDERS: Mapping[str, LogContender]
    """By name; all others are measured against the first."""

    SERVERS: Mapping[str, ServerDefinition]
    """The servers that only peers need."""

    CLEARING: Mapping[str, Callable[[str], None]]
    """By server: drop what a run has left at a URL."""


_OURS: dict[int, float] = {4: 3e6, 100: 1e6, 1000: 2e5}
_OUR_MODULE = "millstream.bench.log.ours"

BUCKET_SERVER = "versitygw" if shutil.which("versitygw") else "moto"
"""The S3 server of the buckets: the Versity gateway writes files; moto is a mock in Python, in memory."""


def _in_bucket(where: str, server: str, *, is_far: bool = False) -> LogContender:
    rates = dict.fromkeys(_OURS, 2e5) if is_far else _OURS
    title = f"millstream, bucket ({where})"
    return LogContender(title, server, rates, _OUR_MODULE, "Our", in_bucket=True, is_far=is_far)


OURS: Mapping[str, LogContender] = {
    "mariadb": LogContender("millstream, MariaDB", "mariadb-whole", _OURS, _OUR_MODULE, "Our"),
    "postgres": LogContender("millstream, PostgreSQL", "postgresql-whole", _OURS, _OUR_MODULE, "Our"),
    "sqlite": LogContender("millstream, SQLite", "", _OURS, _OUR_MODULE, "Our", ".db"),
    "segments": LogContender("millstream, segment files", "", _OURS, _OUR_MODULE, "Our"),
    "bucket": _in_bucket(BUCKET_SERVER, BUCKET_SERVER),
    "bucket-far": _in_bucket(BUCKET_SERVER, BUCKET_SERVER, is_far=True),
    "memory-bucket": _in_bucket("in memory", ""),
    "memory-bucket-far": _in_bucket("in memory", "", is_far=True),
}


@functools.cache
def log_peers() -> LogPeers | None:
    """The peers; None where there is no checkout."""
    return cast(LogPeers | None, load_peers("log"))


def peer_names() -> tuple[str, ...]:
    """The names of all peers that are here."""
    peers = log_peers()
    return () if peers is None else tuple(peers.CONTENDERS)


def contender(name: str) -> LogContender:
    """The contender *name*, ours or a peer."""
    peers = log_peers()
    return OURS[name] if name in OURS or peers is None else peers.CONTENDERS[name]


def open_sender(place: QueueLocation) -> QueueSender:
    """The sender of a contender at *place*."""
    return cast(QueueSender, _made(place, "Sender"))


def open_receiver(place: QueueLocation) -> QueueReceiver:
    """The receiver of a contender at *place*."""
    return cast(QueueReceiver, _made(place, "Receiver"))


def open_ours(place: QueueLocation) -> tuple[OurSender, OurReceiver]:
    """Both sides of our log at *place*, which can do more."""
    return OurSender(place), OurReceiver(place)


def _made(place: QueueLocation, kind: str) -> Any:
    found = contender(place.contender)
    try:
        module = importlib.import_module(found.module)
        return getattr(module, found.classes + kind)(place)
    except ModuleNotFoundError as error:
        raise InputError(f"{found.title} requires the package {error.name}: install it with pip") from error
