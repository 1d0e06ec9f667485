"""Where a database of MariaDB or MySQL is and who asks: the ``mysql://`` URL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from millstream.log.database.place import DatabasePlace, masked, parse_database

__all__ = ["Place", "masked", "parse_place"]


class Place(DatabasePlace, frozen=True):
    """``driver`` is ``text`` (PyMySQL) or ``binary`` (mariadb); without it the first is taken."""

    scheme: ClassVar[str] = "mysql"
    port_by_default: ClassVar[int] = 3306
    options: ClassVar[Sequence[str]] = ("driver", "password_file", "tls_ca")

    driver: Literal["", "text", "binary"] = ""

    __repr__ = __str__ = DatabasePlace.__repr__


def parse_place(url: str) -> Place:
    """The place of *url*. Raises :class:`LogInputError`, which never shows the password."""
    return parse_database(url, Place)
