"""Operations of identifiers: parsing, writing, reading, resolving, and acceptance by a registry. Ledger trees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millstream.bench.anchoring.embedded import in_process
from millstream.bench.anchoring.ledger_trees import trees_of_ledgers
from millstream.bench.anchoring.protocol import by_the_protocol, signatures
from millstream.bench.anchoring.served import over_http
from millstream.bench.anchoring.witnessed import witnessed_ledger
from millstream.bench.runner import Comparison, Size
from millstream.core.canonical import canonical_json
from millstream.testing.dids import DidOwner

OPERATIONS: dict[Size, int] = {"quick": 100, "small": 2_000, "full": 10_000}


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """The protocol by itself; a registry in process; and over HTTP, embedded and on servers."""
    count = OPERATIONS[size]
    people = [DidOwner(f"bench-{n}") for n in range(count)]
    creates = [person.create for person in people]
    updates = [person.update() for person in people]
    yield by_the_protocol("creates", creates, [[] for _ in creates])
    yield by_the_protocol("signed updates", updates, [[create] for create in creates])
    yield signatures(updates)
    requests = [[canonical_json(operation.request) for operation in group] for group in (creates, updates)]
    yield in_process(folder, *requests)
    yield from over_http(folder, *requests)
    yield from trees_of_ledgers(size, folder)
    yield from witnessed_ledger(size, folder)
