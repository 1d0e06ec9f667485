"""The protection of many spaces is found by a fixed number of statements, and each space is as if it was alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from millstream.cli.status import status_lines
from millstream.core.sqlite_file import open_database
from millstream.mill.adoption import status as protection
from millstream.mill.adoption.catalog import AdoptedSpace, AdoptionCatalog
from millstream.mill.adoption.status import NAMED, OVERDUE, UNENDED, VANISHED
from millstream.status.verdict.judge_copies import _space_faults
from support.protected_spaces import add_spaces, space_statuses


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(tmp_path / "node.db", ("mill_",))
    yield engine
    engine.dispose()


@contextlib.contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that are run on *engine*."""
    run: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        run.append(statement)

    sa.event.listen(engine, "before_cursor_execute", record)
    yield run
    sa.event.remove(engine, "before_cursor_execute", record)


@pytest.mark.parametrize("names", [False, True])
def test_more_spaces_take_no_more_statements(engine: sa.Engine, *, names: bool) -> None:
    add_spaces(engine, 0, 8)
    space_statuses(engine, names=names)  # which makes the tables
    with statements(engine) as few:
        assert len(space_statuses(engine, names=names)) == 8
    add_spaces(engine, 8, 40)
    with statements(engine) as many:
        assert len(space_statuses(engine, names=names)) == 40
    assert len(many) == len(few) < 40


def test_a_space_among_many_has_the_status_that_it_has_alone(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_spaces(engine, 0, 12)
    together = space_statuses(engine)
    monkeypatch.setattr(protection, "_PAGE", 1)
    assert space_statuses(engine) == together
    assert [one.items for one in together if one.space in ("s0", "s1", "s8")] == [22, 23, 23]
    damaged = next(one for one in together if one.space == "s1")
    assert (damaged.damaged, [one.content_id for one in damaged.named]) == (1, ["item 1", "item 3"])
    named = Counter(one.kind for one in damaged.copies[1].named)
    assert named == {"checksum-mismatch": 1, "corrupt": 1, "not read": NAMED - 2, "not copied": 1}
    adopted = next(one for one in together if one.space == "s3")
    assert (adopted.vanished, adopted.items, adopted.last_code) == (3, 22, 1)
    assert [one.content_id for one in adopted.named if one.kind == VANISHED] == ["item 0", "item 2"]


@pytest.mark.parametrize(
    ("begun", "ended", "code", "now", "overdue"),
    [
        (1, 22, 0, 22 + OVERDUE, []),
        (1, 22, 0, 23 + OVERDUE, ["is_overdue"]),
        (1, 22, None, 23 + UNENDED, []),
        (30, 22, None, 30 + UNENDED, []),
        (30, 22, None, 31 + UNENDED, ["is_unended"]),
        (1, None, None, 2 + UNENDED, ["is_unended"]),
        (30, 22, 1, 31 + UNENDED, []),
    ],
)
def test_a_source_that_no_run_reads_is_not_well_although_others_check_its_copies(
    engine: sa.Engine, begun: int, ended: int | None, code: int | None, now: int, overdue: list[str]
) -> None:
    add_spaces(engine, 2, 3)
    AdoptionCatalog(engine).save_space(AdoptedSpace("one", "s2", "hold", begun, ended, code))
    (status,) = space_statuses(engine, now=now)
    assert [name for name in ("is_overdue", "is_unended") if getattr(status, name)] == overdue
    status = msgspec.structs.replace(status, copies=())  # the copies are in order
    assert status.is_well == (not overdue and not code)
    faults = list(_space_faults(status, (), now, is_adopted=True))
    assert len(faults) == len(overdue) + bool(code) and len(list(status_lines(status, now))) == 3 + len(faults)
