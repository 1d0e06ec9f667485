"""Logs in PostgreSQL, for those who run it already: ``postgresql://user:password@host:port/database``."""

from __future__ import annotations

from millstream.log.postgres.backend import PostgresBackend
from millstream.log.postgres.place import Place, parse_place

__all__ = ["Place", "PostgresBackend", "parse_place"]
