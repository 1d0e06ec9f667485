"""Types of columns that mean the same on SQLite, MariaDB and MySQL."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

WHOLE_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""64 bits with a sign. On SQLite a primary key of this type is the row's own number, which costs no second index."""

LONG_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def exact_text(length: int) -> sa.types.TypeEngine[str]:
    """Text of at most *length* characters that is compared byte for byte.

    By itself MariaDB takes two texts that differ in case alone for one.
    """
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")
