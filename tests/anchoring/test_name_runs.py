"""Names of batches are found by few pages, however many runs there were, and runs stay few."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import numpy as np
import pytest
import sqlalchemy as sa

from millstream.anchoring import name_runs
from millstream.anchoring.name_runs import NameRuns, pages_table, runs_table


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    METADATA.create_all(engine)
    with engine.begin() as opened:
        yield opened
    engine.dispose()


METADATA = sa.MetaData()
RUNS, PAGES = runs_table("runs", METADATA), pages_table("pages", METADATA)


def count(connection: sa.Connection, table: sa.Table) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_every_name_is_found_with_all_its_places_through_merges(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_runs, "_PAGE_NAMES", 8)
    monkeypatch.setattr(name_runs, "_MERGED_AT_ONCE", 64)
    monkeypatch.setattr(name_runs, "_PAGES_AT_ONCE", 7)
    names, draw, known = NameRuns(RUNS, PAGES), random.Random(1), dict[str, set[int]]()
    for start in range(0, 6000, 100):
        own = [f"batch-{draw.randrange(5000)}" for _ in range(draw.choice([0, 1, 5, 100]))]
        places = (1 << 62) + start + np.arange(len(own))
        names.add(connection, "weather", own, places)
        for name, place in zip(own, places.tolist(), strict=True):
            known.setdefault(name, set()).add(place)
    names.add(connection, "tides", ["batch-1", "only-here"], np.array([1, 2]))
    asked = [*known, "never", "only-here"]
    found = dict[str, set[int]]()
    for name, place in names.find(connection, "weather", asked):
        found.setdefault(name, set()).add(place)
    assert found == known
    assert sorted(names.find(connection, "tides", ["only-here", "batch-1", "batch-1"])) == [
        ("batch-1", 1), ("batch-1", 1), ("only-here", 2)
    ]  # fmt: skip
    assert list(names.find(connection, "weather", [])) == []
    assert count(connection, RUNS) < 15
    assert connection.execute(sa.select(sa.func.sum(RUNS.c.names))).scalar_one() == sum(map(len, known.values())) + 2


def test_names_that_are_hashes_are_spread_over_all_pages(connection: sa.Connection) -> None:
    names = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(20_000)]
    NameRuns(RUNS, PAGES).add(connection, "weather", names, np.arange(20_000))
    sizes = connection.execute(sa.select(sa.func.length(PAGES.c.hashes))).scalars().all()
    assert (len(sizes), min(sizes) > 8 * 1000, max(sizes) < 8 * 1500) == (16, True, True)
    found = dict(NameRuns(RUNS, PAGES).find(connection, "weather", [*names, "other"]))
    assert found == {name: place for place, name in enumerate(names)}


def test_a_name_among_many_is_looked_for_in_a_page_of_each_run(connection: sa.Connection) -> None:
    names = NameRuns(RUNS, PAGES)
    for run in range(6):
        names.add(connection, "weather", [f"{run}-{number}" for number in range(3000)], np.arange(3000) + 3000 * run)
    assert (count(connection, RUNS), count(connection, PAGES)) == (3, 12)
    read = list[int]()
    sa.event.listen(
        connection, "after_execute", lambda *given: read.append(len(given[1].selected_columns)), named=False
    )
    assert [place for _, place in names.find(connection, "weather", ["2-17"])] == [6017]
    assert len(read) == 1 + 3 + 1  # the runs, a page of each, and the places of the one that has the name
