"""Logs in PostgreSQL, for those who run it already: ``postgresql://user:password@host:port/database``."""

from __future__ import annotations

from millstream.log.backends.postgres.address import PostgresAddress, parse_address
from millstream.log.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresAddress", "PostgresBackend", "parse_address"]
