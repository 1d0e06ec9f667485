"""An encrypted connection to PostgreSQL: only to a server whose certificate our authority has signed for its name."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import LogSpec, StorageError, open_store
from millstream.testing import services
from millstream.testing.databases import connected

pytestmark = pytest.mark.usefixtures("postgresql")  # skips where there is none


def certify(folder: Path, name: str) -> Path:
    """A certificate for 127.0.0.1 that has signed itself, with its key beside it."""
    certificate = folder / f"{name}.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-keyout", folder / f"{name}.key", "-out", certificate, "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that has the certificate ``ours``."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    ours = certify(tmp_path, "ours")
    with services.private("postgresql") as server:
        url = f"{server.url}postgres"
        with connected(url) as connection:
            ((data,),) = connection.rows("SHOW data_directory")
            owner = Path(str(data)).stat()
            for name, source in (("server.crt", ours), ("server.key", ours.with_suffix(".key"))):
                target = Path(str(data)) / name
                shutil.copy(source, target)
                target.chmod(0o600)
                os.chown(target, owner.st_uid, owner.st_gid)
            connection.execute("ALTER SYSTEM SET ssl = 'on'")
            connection.rows("SELECT pg_reload_conf()")
        yield f"{server.url}encrypted"


def test_a_store_is_opened_only_where_the_certificate_is_the_right_one(encrypted: str, tmp_path: Path) -> None:
    url = f"{encrypted}?tls_ca={tmp_path / 'ours.crt'}"
    with open_store(url) as store:
        assert store.url == url
        with store.log(LogSpec("weather")).writer() as writer:
            assert writer.append([b"a"]) is not None
    with connected(url) as connection:
        ((used,),) = connection.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert used is True
    theirs = certify(tmp_path, "theirs")
    with pytest.raises(StorageError, match="certificate"):
        open_store(f"{encrypted}?tls_ca={theirs}")


def test_a_server_without_encryption_is_refused_where_it_is_asked_for(postgres_database: str, tmp_path: Path) -> None:
    ours = certify(tmp_path, "ours")
    with pytest.raises(StorageError, match="does not support SSL"):
        open_store(f"{postgres_database}?tls_ca={ours}")
