"""An encrypted connection to PostgreSQL: only to a server whose certificate our authority has signed for its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import StorageError, open_store
from millstream.testing import services
from millstream.testing.databases import connected
from support.certificates import Authority
from support.trusted_servers import opened_if_trusted

pytestmark = pytest.mark.usefixtures("postgresql")  # skips where there is none


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def encrypted(ours: Authority) -> Iterator[str]:
    """The URL of a server that has a certificate of ``ours``."""
    certificate, key = ours.issue("server")
    with services.private("postgresql") as server:
        url = f"{server.url}postgres"
        with connected(url) as connection:
            ((data,),) = connection.rows("SHOW data_directory")
            owner = Path(str(data)).stat()
            for name, source in (("server.crt", certificate), ("server.key", key)):
                target = Path(str(data)) / name
                shutil.copy(source, target)
                target.chmod(0o600)
                os.chown(target, owner.st_uid, owner.st_gid)
            connection.execute("ALTER SYSTEM SET ssl = 'on'")
            connection.rows("SELECT pg_reload_conf()")
        yield f"{server.url}encrypted"


def test_a_store_is_opened_only_where_the_certificate_is_the_right_one(
    encrypted: str, ours: Authority, tmp_path: Path
) -> None:
    with connected(opened_if_trusted(encrypted, ours.path, tmp_path, "certificate")) as connection:
        ((used,),) = connection.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert used is True


def test_a_server_without_encryption_is_refused_where_it_is_asked_for(postgres_database: str, ours: Authority) -> None:
    with pytest.raises(StorageError, match="does not support SSL"):
        open_store(f"{postgres_database}?tls_ca={ours.path}")
