"""Logs in MariaDB or MySQL, for those who run a database server already: ``mysql://user:password@host:port/database``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.log.backends.mysql.address import MysqlAddress, parse_address
    from millstream.log.backends.mysql.backend import MysqlBackend

__all__ = ["MysqlAddress", "MysqlBackend", "parse_address"]

__getattr__ = lazy_names(__name__)
