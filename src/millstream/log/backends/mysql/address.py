"""Where a database of MariaDB or MySQL is and who asks: the ``mysql://`` URL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from millstream.log.backends.database.address import DatabaseAddress, mask_password, parse_database

__all__ = ["MysqlAddress", "mask_password", "parse_address"]


class MysqlAddress(DatabaseAddress, frozen=True):
    """``driver`` is ``text`` (PyMySQL) or ``binary`` (mariadb); without it the first is taken."""

    scheme: ClassVar[str] = "mysql"
    port_by_default: ClassVar[int] = 3306
    options: ClassVar[Sequence[str]] = ("driver", "password_file", "tls_ca")

    driver: Literal["", "text", "binary"] = ""

    __repr__ = __str__ = DatabaseAddress.__repr__


def parse_address(url: str) -> MysqlAddress:
    """The place of *url*. Raises :class:`LogInputError`, which never shows the password."""
    return parse_database(url, MysqlAddress)
