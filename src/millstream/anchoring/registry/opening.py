"""A registry's database by its URL, and the name of an instance."""

from __future__ import annotations

import os
import secrets
import socket

import sqlalchemy as sa

from millstream.anchoring.registry.errors import RegistryError

_POOL = 20


def open_server(url: str) -> sa.Engine:
    """The database at *url*, ``mysql://user:password@host:port/name``. The password is never shown.

    Raises :class:`RegistryError` for another URL, or where the driver is missing.
    """
    try:
        place = sa.make_url(url)
    except sa.exc.ArgumentError:
        place = sa.make_url("none://")
    if place.drivername not in ("mysql", "mariadb") or not place.database or not place.host:
        raise RegistryError(
            "a registry's database is mysql://user:password@host:port/name, or empty for the node's own"
        )
    try:
        # Rows that others hold must not be locked beyond what is read, or instances would wait for one another.
        return sa.create_engine(
            place.set(drivername="mysql+pymysql"),
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            pool_size=_POOL,
            connect_args={"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60},
        )
    except ImportError as error:
        raise RegistryError("MariaDB and MySQL need PyMySQL: pip install 'millstream[mysql]'") from error


def instance_name() -> str:
    """A name for this process that no other ever had: it says where the process is, and is otherwise random."""
    return f"{socket.gethostname()[:30]}-{os.getpid()}-{secrets.token_hex(6)}"
