"""The cache of a proxy of Swift, which tells it for a minute what accounts and containers are."""

from __future__ import annotations

from typing import Any

from millstream.core.clock import VirtualClock
from millstream.testing.swift import ProxyCache, cache_filter


def test_what_was_learnt_is_known_until_it_is_old_or_changed() -> None:
    clock = VirtualClock()
    cache = ProxyCache(clock)
    cache.set("container/a/b", {"status": 200}, time=60)
    cache.set("account/a", {"status": 204}, time=60)
    assert cache.get("container/a/b", raise_on_error=True) == {"status": 200}
    assert cache.get("container/a/c") is None
    cache.delete("container/a/b")
    cache.delete("container/a/b")
    assert (cache.get("container/a/b"), cache.get("account/a")) == (None, {"status": 204})
    clock.advance(60)
    assert cache.get("account/a") is None


def test_all_requests_have_one_cache_and_values_of_their_own() -> None:
    seen: list[Any] = []
    application = cache_filter({})(lambda environ, _: seen.append(environ["swift.cache"]) or [])
    application({}, None)
    application({}, None)
    first, second = seen
    first.set("account/a", {"meta": {}}, time=60)
    second.get("account/a")["meta"]["x"] = "y"
    assert first.get("account/a") == {"meta": {}}
