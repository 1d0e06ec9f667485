"""What tests of adoptions share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from adopted_folder import SPACE, SourceFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SourceFolder]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    (tmp_path / SPACE).mkdir()
    yield SourceFolder(tmp_path / SPACE, engine)
    engine.dispose()
