"""Types of columns that mean the same on SQLite, PostgreSQL, MariaDB and MySQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

WHOLE_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""64 bits with a sign. On SQLite a primary key of this type is the row's own number, which costs no second index."""

LONG_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
EXACT_LONG_TEXT = (
    sa.Text()
    .with_variant(sa.Text(collation="C"), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
)
"""Text of any length that keeps every character, whatever the character set of the database is, and is compared by
case."""


def exact_text(length: int) -> sa.types.TypeEngine[str]:
    """Text of at most *length* characters that is compared byte for byte.

    By itself MariaDB takes two texts that differ in case alone for one.
    """
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


class _Utf8(sa.types.TypeDecorator[str]):
    """Text as the bytes of its UTF-8: MariaDB takes four bytes a character for a key otherwise, of 3,072 at most, and
    takes two texts for one that differ in spaces at the end."""

    impl = mysql.VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        return value.encode("utf-8") if isinstance(value, str) else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        return value.decode("utf-8") if isinstance(value, bytes | bytearray) else value


def key_text(size: int) -> sa.types.TypeEngine[str]:
    """Text of at most *size* bytes of UTF-8 that is compared and ordered by its bytes, and may be part of a key."""
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(_Utf8(size), "mysql", "mariadb")


NAME = key_text(255)
"""The name of a log, a store or a space, or another short name."""

CONTENT_ID = key_text(1024)
