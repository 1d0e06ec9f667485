"""Logs in MariaDB or MySQL, for those who run a database server already: ``mysql://user:password@host:port/database``."""

from __future__ import annotations

from millstream.log.mysql.backend import MysqlBackend
from millstream.log.mysql.place import Place, masked, parse_place

__all__ = ["MysqlBackend", "Place", "masked", "parse_place"]
