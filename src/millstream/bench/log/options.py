"""Which parts of the benchmark are run, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from millstream.bench.log.contenders import OURS, log_peers, peer_names
from millstream.bench.peers import ABSENT
from millstream.core.decoding import prepared
from millstream.core.errors import InputError
from millstream.core.plain_reasons import field_reason

Senders = Literal["coroutines", "threads"]

PAYLOADS = (4, 100, 1000)
PACKS = (200, 10, 1)
MODES = ("alone", "both", "processes", "arrow", "ahead", "lone")
"""Write and then read; both at once; both at once in two processes; Arrow; several packs of a sender under way at
once; the wait for a lone message."""

_LIMITS = {
    "payloads": (1, 1 << 20, "bytes"), "packs": (1, 10_000, "messages per append"),
    "unconfirmed": (1, 1_000_000, "messages"), "latency": (0, 60_000, "ms"),
}  # fmt: skip
"""The least and the greatest value of options, and the unit."""

DEFAULT_MODES = tuple(mode for mode in MODES if mode != "ahead")
DEFAULT_BACKENDS = ("mariadb", "postgres", "sqlite", "segments", "bucket")


class Choice(msgspec.Struct, frozen=True):
    """What to measure: payloads in bytes, messages a pack, our backends, peers, how many senders of which kind.

    ``unconfirmed`` is how many messages a sender of the mode *ahead* has under way at most; ``latency`` are the
    milliseconds that each request of a bucket takes longer which is far; ``seconds`` is about how long one run of one
    contender writes.
    """

    payloads: Sequence[int] = PAYLOADS
    packs: Sequence[int] = PACKS
    backends: Sequence[str] = DEFAULT_BACKENDS
    peers: Sequence[str] = msgspec.field(default_factory=peer_names)
    modes: Sequence[str] = DEFAULT_MODES
    senders: int = 1000
    unconfirmed: int = 100
    latency: float = 50.0
    kind: Senders = "coroutines"
    seconds: float = 1.5

    def __post_init__(self) -> None:
        if self.peers and log_peers() is None:
            raise InputError(
                f"--peers {','.join(self.peers)} cannot be measured: {ABSENT}. Omit --peers, or run the "
                "benchmark in a checkout"
            )
        for name, known in (("backends", tuple(OURS)), ("peers", peer_names()), ("modes", MODES)):
            unknown = set(getattr(self, name)) - set(known)
            if unknown:
                raise InputError(
                    f"--{name}: unknown value {', '.join(map(repr, sorted(unknown)))}; choose from {', '.join(known)}"
                )
        if not self.contenders:
            raise InputError("nothing to measure: name at least one store with --backends, or a peer with --peers")
        for name, (least, most, unit) in _LIMITS.items():
            value = getattr(self, name)
            for number in value if isinstance(value, Sequence) else (value,):
                if not least <= number <= most:
                    raise InputError(f"--{name}: {number:,} is out of range: use {least} to {most:,} {unit}")

    @property
    def contenders(self) -> list[str]:
        """All that take part, peers first."""
        return [*self.peers, *self.backends]

    def load(self, rate: float, pack: int) -> tuple[int, int]:
        """How many senders, and how many packs each, make about ``seconds`` of work at *rate* messages a second."""
        packs = max(round(rate * self.seconds / pack), 1)
        senders = min(self.senders, packs)
        return senders, max(round(packs / senders), 1)


def parse_choice(parts: Mapping[str, str], **defaults: Any) -> Choice:
    """The choice that *parts* make, as they stand on the command line; *defaults* for what they leave open.

    Raises :class:`InputError`.
    """
    lists = {"payloads", "packs", "backends", "peers", "modes"}
    found = {name: _items(value) if name in lists else value for name, value in parts.items()}
    try:
        return msgspec.convert({**defaults, **found}, prepared(Choice), strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"invalid option of the benchmark log: {field_reason(error, Choice)}") from error


def _items(text: str) -> list[str]:
    return [] if text == "none" else [item.strip() for item in text.split(",")]
