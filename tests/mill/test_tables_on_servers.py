"""The tables of a node give the same answers on every kind of database that may hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from millstream.core.database_server import open_server
from millstream.core.writers_lock import lock_writers
from support.server_databases import new_database
from support.table_scripts import SCRIPTS, Script


def _answers(script: Script, engine: sa.Engine) -> list[str]:
    try:
        return [repr(_plain(answer)) for answer in script(engine)]
    finally:
        engine.dispose()


def _plain(value: Any) -> Any:
    """*value* without what means the same: the kinds of numbers and truth values, the order of what has none."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_server_gives_the_answers_of_a_file(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, script: Script
) -> None:
    expected = _answers(script, sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}"))
    with new_database(str(request.getfixturevalue(server)), "node") as url:
        engine = open_server(url)
        lock_writers(engine)
        assert _answers(script, engine) == expected
