"""An encrypted connection to MariaDB: only to a server whose certificate our authority has signed for its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.log import StorageError, open_store
from millstream.testing import services
from millstream.testing.databases import connected
from support.certificates import Authority
from support.trusted_servers import opened_if_trusted

pytestmark = pytest.mark.usefixtures("mariadb")  # skips where there is none


class EncryptedMariaDB(services.MariaDB):
    """MariaDB with a certificate for 127.0.0.1."""

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__()
        self.name = "mariadb-encrypted"
        self._options = [f"--ssl-cert={certificate}", f"--ssl-key={key}"]

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [*super().command(folder, port), *self._options]


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def encrypted(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a database on a server with a certificate of ``ours``."""
    kind = EncryptedMariaDB(*ours.issue("server", names=()))
    monkeypatch.setitem(services.SERVICES, kind.name, kind)
    with services.private(kind.name) as server:
        yield f"{server.url}encrypted"


def test_a_store_is_opened_only_where_the_certificate_is_the_right_one(
    encrypted: str, ours: Authority, tmp_path: Path
) -> None:
    url = opened_if_trusted(encrypted, ours.path, tmp_path, "certificate verify failed")
    with connected(url) as connection:
        ((_, cipher),) = connection.rows("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cipher
    with pytest.raises(StorageError, match="localhost"):
        open_store(url.replace("127.0.0.1", "localhost"))


def test_a_server_without_encryption_is_refused_where_it_is_asked_for(database: str, ours: Authority) -> None:
    with pytest.raises(StorageError, match="SSL"):
        open_store(f"{database}?tls_ca={ours.path}")
