"""Whoever moves blocks, trims or copies is killed at every step: nothing is lost or doubled, the next run finishes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import Gap, Log, LogSpec
from millstream.stores.tiers import open_log_store
from suite.sizes import sized

pytestmark = pytest.mark.crash

CHILD = Path(__file__).parents[1] / "children" / "tier.py"
SPEC = LogSpec("weather", compression="plain")


class Mover:
    """The process whose children are killed."""

    def __init__(self, url: str, objects: str) -> None:
        line = [sys.executable, "-W", "error", str(CHILD), url, objects]
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, *words: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(params=["sqlite", "segments", "mysql", "postgresql"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    names = {"mysql": "database", "postgresql": "postgres_database"}
    if request.param in names:
        found: str = request.getfixturevalue(names[request.param])
        return found
    return f"{request.param}:///{tmp_path / 'logs'}"


@pytest.fixture
def mover(url: str, tmp_path: Path) -> Iterator[Mover]:
    with open_log_store(url) as store:
        store.log(SPEC)
    found = Mover(url, f"file://{tmp_path / 'cold'}")
    yield found
    found.close()


def append(url: str, count: int) -> int:
    """Blocks of ten messages of 160 bytes; the last id."""
    with open_log_store(url) as store, store.log(SPEC).writer() as writer:
        for first in range(writer.last_id + 1, writer.last_id + count, 10):
            writer.append([b"%0160d" % n for n in range(first, first + 10)])
        return writer.last_id


def check(log: Log, last_id: int) -> None:
    """Every id is there once, or below the low-water mark."""
    assert log.last_id == last_id
    assert log.verify(deep=True).problems == ()
    gaps = [batch.ids for batch in log.read(1) if isinstance(batch, Gap)]
    assert [(ids.first, ids.last) for ids in gaps] == ([(1, log.first_id - 1)] if log.first_id > 1 else [])
    found = [message for batch in log.read() for message in batch]
    assert [message.id for message in found] == list(range(log.first_id, last_id + 1))
    assert all(message.body == b"%0160d" % (message.id or 0) for message in found)
    assert log.info().count == len(found)


def objects_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cold").rglob("*.tier"))


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p2_whoever_moves_blocks_is_killed_at_every_step(url: str, mover: Mover, tmp_path: Path, size: str) -> None:
    """An object takes about 25 steps; a run moves what is due, the objects of the runs before as well."""
    stride = 1 if size == "long" or url.startswith("sqlite") else 3
    steps = range(1, sized(ci=31, long=200), stride)
    killed = 0
    for turn, step in enumerate(steps):
        last_id = append(url, 50)
        result = mover.do("move", step)
        assert result in {"killed", "done"}
        killed += result == "killed"
        if turn % 5 == 0:
            with open_log_store(url) as store:
                check(store.log(SPEC), last_id)
    assert killed > min(len(steps), 50) / 2, "a run ends after fewer steps than the last of these"
    assert mover.do("move", 0) == "done"
    with open_log_store(url) as store:
        log = store.log(SPEC)
        check(log, last_id)
        tier = log.info().tier
        assert tier is not None
        assert tier.last_id > last_id - 50
        assert tier.objects == len(objects_of(tmp_path)), "an object was stored twice, or left behind"


@pytest.mark.long
def test_whoever_trims_a_tiered_log_is_killed_at_every_step(url: str, mover: Mover, tmp_path: Path) -> None:
    last_id = append(url, 400)
    assert mover.do("move", 0) == "done"
    before = 1
    for step in itertools.count(1):
        first_id = before + 45
        result = mover.do("trim", first_id, step)
        with open_log_store(url) as store:
            log = store.log(SPEC)
            assert log.first_id in {before, first_id}
            before = log.first_id
            check(log, last_id)
        if result == "done" or first_id + 90 > last_id:
            break
    assert mover.do("trim", before + 1, 0) == "done"
    with open_log_store(url) as store:
        tier = store.log(SPEC).info().tier
    kept = [name for name in objects_of(tmp_path) if int(name[21:41]) > before]
    assert tier is not None
    assert objects_of(tmp_path) == kept
    assert tier.objects == len(kept)


@pytest.mark.long
def test_whoever_trims_a_log_without_a_tier_is_killed_at_every_step(url: str) -> None:
    last_id, killed = append(url, 400), 0
    mover = Mover(url, "-")
    for step in itertools.count(1):
        with open_log_store(url) as store:
            before = store.log(SPEC).first_id
        result = mover.do("trim", before + 45, step)
        killed += result == "killed"
        with open_log_store(url) as store:
            assert store.log(SPEC).first_id in {before, before + 45}
            check(store.log(SPEC), last_id)
        if result == "done" or before + 90 > last_id:
            break
    assert killed >= 4, "the mark is moved, and blocks are freed, each with a moment before and after it"
    assert mover.do("trim", last_id + 1, 0) == "done"
    mover.close()
    with open_log_store(url) as store:
        assert store.log(SPEC).first_id == last_id + 1


@pytest.mark.long
def test_p2_whoever_copies_a_log_is_killed_at_every_step(url: str, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path / 'from.db'}"
    last_id = append(source, 400)
    mover = Mover(source, "-")
    for step in itertools.count(1):
        result = mover.do("copy", url, step)
        assert result in {"killed", "done"}
        if result == "done":
            break
        with open_log_store(url) as store:
            if list(store.logs()) == ["weather"]:
                check(store.log(SPEC), store.log(SPEC).last_id)
        with open_log_store(source) as store, store.log(SPEC).writer() as writer:
            writer.append([b"%0160d" % n for n in range(last_id + 1, last_id + 11)])
            last_id += 10
    mover.close()
    assert step > 4, "the copy takes a lease, and commits"
    with open_log_store(url) as store, open_log_store(source) as old:
        check(store.log(SPEC), last_id)
        assert [m.body for b in store.log(SPEC).read() for m in b] == [m.body for b in old.log(SPEC).read() for m in b]
