"""The ``postgresql://`` URL of a database of PostgreSQL, with the account that connects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from millstream.log.backends.database.address import DatabaseAddress, parse_database


class PostgresAddress(DatabaseAddress, frozen=True):
    """``tls_cert`` and ``tls_key`` are files with a certificate and its key that we show to the server."""

    scheme: ClassVar[str] = "postgresql"
    port_by_default: ClassVar[int] = 5432
    options: ClassVar[Sequence[str]] = ("password_file", "tls_ca", "tls_cert", "tls_key")

    tls_cert: str = ""
    tls_key: str = ""

    __repr__ = __str__ = DatabaseAddress.__repr__


def parse_address(url: str) -> PostgresAddress:
    """The place of *url*. Raises :class:`LogInputError`, which never shows the password."""
    return parse_database(url, PostgresAddress)
