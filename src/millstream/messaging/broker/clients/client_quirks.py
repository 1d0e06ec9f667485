"""Requirements of official clients beyond the protocol, by language, as observed with the named versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from millstream.messaging.protocol import v2

_KEEP_ORDER: Final = ("JAVA", "PYTHON", "HTTP")
_FOLLOW_ROUTES: Final = ("JAVA", "PYTHON")
_NODE_MILLISECONDS: Final = (1, 0, 8)


def keeps_order(language: str) -> bool:
    """Whether push consumers that call themselves *language* handle a run of a message group in order though one fails,
    if they have handled messages in order since they started.

    Those of Java 5.0.8 and 5.2.0, Python 5.1.1 and 5.1.2 and Node 1.0.8 (whose header says HTTP) do. Go 5.1.3 continues
    with the next message while one waits for its retry; the others are untested.
    """
    return language in _KEEP_ORDER


def follows_routes(language: str) -> bool:
    """Whether clients of *language* continue at another server once the route of a topic names it.

    Those of Java 5.2.0 and Python 5.1.2 do, and ours. Producers of Go 5.1.3 and Node 1.0.8 keep their first route for
    ever, and Rust 5.0.0 needs settings of the server that it was given; the others are untested.
    """
    return language in _FOLLOW_ROUTES


def asks_for_routes_first(settings: v2.Settings) -> bool:
    """Whether the client with these *settings* must not be answered before it has asked for the routes of its topics.

    Node 1.0.8 sends them meanwhile, and begins to wait for the answer when it has all routes: one that came before is
    missed, and the next comes after five minutes.
    """
    return settings.user_agent.language == v2.NODE_JS


def set_backoff(settings: v2.Settings, backoff: Sequence[int]) -> None:
    """Write the pauses *backoff* (microseconds) into *settings* in the way that the client reads them."""
    policy = settings.backoff_policy
    if not _takes_seconds_for_milliseconds(settings.user_agent):
        for pause in backoff:
            policy.customized_backoff.next.add().FromMicroseconds(pause)
        return
    exponential = policy.exponential_backoff
    exponential.initial.seconds, exponential.max.seconds = backoff[0] // 1000, max(backoff) // 1000
    exponential.multiplier = 2 if len(backoff) > 1 else 1


def _takes_seconds_for_milliseconds(agent: v2.UA) -> bool:
    """Node up to 1.0.8 knows exponential back-off alone, of which it takes the seconds for milliseconds.

    Without any it tries a message again at once, or gives it up after one attempt if it has a message group.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", agent.version)
    version = tuple(map(int, found.groups())) if found else None
    return agent.language == v2.NODE_JS and version is not None and version <= _NODE_MILLISECONDS
