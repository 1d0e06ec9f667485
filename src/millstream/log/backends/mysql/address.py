"""The ``mysql://`` URL of a database of MariaDB or MySQL, with the account that connects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from millstream.log.backends.database.address import DatabaseAddress, parse_database
from millstream.log.errors import LogInputError


class MysqlAddress(DatabaseAddress, frozen=True):
    """``driver`` is ``text`` or empty. Both mean PyMySQL; earlier releases had another driver to choose."""

    scheme: ClassVar[str] = "mysql"
    port_by_default: ClassVar[int] = 3306
    options: ClassVar[Sequence[str]] = ("driver", "password_file", "tls_ca")

    driver: Literal["", "text", "binary"] = ""

    __repr__ = __str__ = DatabaseAddress.__repr__


def parse_address(url: str) -> MysqlAddress:
    """The address of *url*. Raises :class:`LogInputError`, which never shows the password."""
    address = parse_database(url, MysqlAddress)
    if address.driver == "binary":
        raise LogInputError(
            f"the driver `binary` of {address.url} is no longer supported: remove driver=binary from "
            "the URL, and install PyMySQL (pip install 'millstream[mysql]'), which reads and writes "
            "the same database"
        )
    return address
