"""An interface for programs is asked for things that there are: ids come from the answers to earlier questions."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from as_described import described_checks, operations_of

from millstream.core.clock import SystemClock

_ALIASES = {"task_ids": "task_id", "seen": "sha256", "If-Match": "version", "content_id": "content_id", "q": "batch"}
"""Parameters that take what answers call otherwise."""

_MOST_RECORDS = 400
_SHARE = 0.9
"""How often a parameter that can be filled from an answer is."""

_ROUND = 100


class KnownIds:
    """What answers said there is: records of values by the names of parameters, for each part of the interface."""

    def __init__(self, names: frozenset[str], draw: random.Random) -> None:
        self._names, self._draw = names, draw
        self._records: dict[str, list[Mapping[str, Any]]] = {}

    def learn(self, path: str, asked: Mapping[str, Any], answer: Any) -> None:
        """Take in the *answer* to a question at *path* that was *asked* with these parameters."""
        for found in _objects(answer):
            record = {name: value for name, value in found.items() if name in self._names and _is_id(value)}
            if record:
                records = self._records.setdefault(_part(path), [])
                records.append({**{name: asked[name] for name in asked if _is_id(asked[name])}, **record})
                if len(records) > _MOST_RECORDS:
                    records.pop(self._draw.randrange(len(records)))

    def fitting(self, path: str, wanted: Sequence[str]) -> Mapping[str, Any]:
        """Values for as many of the *wanted* parameters of *path* as one record has, of the same part if possible."""
        every = [record for part in sorted(self._records) for record in self._records[part]]
        own = self._records.get(_part(path), [])
        most: Mapping[str, Any] = {}
        for record in self._draw.sample(own, min(20, len(own))) + self._draw.sample(every, min(20, len(every))):
            if sum(name in record for name in wanted) > sum(name in most for name in wanted):
                most = record
        return most


def ask_with_known_ids(description: Path, url: str, *, examples: int, seconds: float = 0.0) -> Counter[int]:
    """Ask at *url* so many times, and go on for *seconds*; the number of answers by status.

    Every answer must be as described and never 500.
    """
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st
    from schemathesis import GenerationMode

    operations, statuses, draw = operations_of(description), Counter[int](), random.Random(1)
    names = frozenset(name for operation in operations.values() for name in _parameters(operation))
    known = KnownIds(names | frozenset(_ALIASES.values()), draw)

    @functools.cache
    def strategy(label: str) -> Any:
        return operations[label].as_strategy(generation_mode=GenerationMode.POSITIVE)

    def ask(case: Any) -> None:
        _fill(case, known, draw)
        response = case.call(base_url=url)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=described_checks())
        if response.status_code == 200 and "json" in response.headers.get("content-type", [""])[0]:
            known.learn(case.operation.path, {**(case.path_parameters or {}), **(case.query or {})}, response.json())

    clock = SystemClock()
    until = clock.monotonic() + seconds
    rounds = 0
    while sum(statuses.values()) < examples or clock.monotonic() < until:
        rounds += 1

        @seed(rounds)
        @settings(
            max_examples=min(_ROUND, max(examples - sum(statuses.values()), 10)) if not seconds else _ROUND,
            deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(data=st.data())
        def ask_once(data: Any) -> None:
            ask(data.draw(strategy(data.draw(st.sampled_from(sorted(operations))))))

        ask_once()
    return statuses


def _fill(case: Any, known: KnownIds, draw: random.Random) -> None:
    """Put known values in the place of drawn ones."""
    places = [case.path_parameters, case.query, case.headers, case.body]
    dicts = [place for place in places if isinstance(place, dict) or hasattr(place, "items")]
    wanted = [_ALIASES.get(name, name) for place in dicts for name in place]
    required = [name for name in _required(case.operation) if name not in wanted]
    values = known.fitting(case.operation.path, [*wanted, *required])
    for place in dicts:
        for name in list(place):
            source = _ALIASES.get(name, name)
            if source in values and draw.random() < _SHARE:
                value = values[source]
                place[name] = [value] if name == "task_ids" else _like(value, place[name])


def _like(value: Any, drawn: Any) -> Any:
    """*value* as the type of *drawn*, where that is a text."""
    return str(value) if isinstance(drawn, str) else value


def _parameters(operation: Any) -> Iterator[str]:
    raw = operation.definition.raw
    yield from (parameter["name"] for parameter in raw.get("parameters", ()))
    for media in raw.get("requestBody", {}).get("content", {}).values():
        yield from media.get("schema", {}).get("properties", {})


def _required(operation: Any) -> Iterator[str]:
    for parameter in operation.definition.raw.get("parameters", ()):
        if parameter.get("required"):
            yield _ALIASES.get(parameter["name"], parameter["name"])


def _part(path: str) -> str:
    """The part of the interface to which *path* belongs."""
    return path.removeprefix("/api/v1").split("/")[1]


def _objects(answer: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in *answer*, however deep."""
    if isinstance(answer, dict):
        yield answer
        for value in answer.values():
            yield from _objects(value)
    elif isinstance(answer, list):
        for value in answer[:50]:
            yield from _objects(value)


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""
