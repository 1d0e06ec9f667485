"""Tables of a database that several processes open at the same moment."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core.sql import make_tables

TABLES = 20


def schema() -> sa.MetaData:
    metadata = sa.MetaData()
    for number in range(TABLES):
        sa.Table(f"t{number}", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Index(f"i{number}", "id"))
    return metadata


def made(engine: sa.Engine) -> int:
    return len(sa.inspect(engine).get_table_names())


@pytest.mark.parametrize("round_", range(5))
def test_any_number_may_make_the_same_tables_at_once(tmp_path: Path, round_: int) -> None:
    url, failures = f"sqlite:///{tmp_path / f'{round_}.db'}", list[BaseException]()
    ready = threading.Barrier(8)

    def open_it() -> None:
        engine = sa.create_engine(url, connect_args={"timeout": 30})
        ready.wait()
        try:
            make_tables(engine, schema())
        except BaseException as error:
            failures.append(error)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine = sa.create_engine(url)
    assert not failures
    assert made(engine) == TABLES
    engine.dispose()


def test_what_is_there_needs_no_right_to_write(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    make_tables(engine, schema())
    engine.dispose()
    reader = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    make_tables(reader, schema())
    assert made(reader) == TABLES
    reader.dispose()


def test_tables_that_cannot_be_made_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "kept.db").touch()
    reader = sa.create_engine(f"sqlite:///file:{tmp_path / 'kept.db'}?mode=ro&uri=true")
    with pytest.raises(sa.exc.OperationalError):
        make_tables(reader, schema())
    reader.dispose()
