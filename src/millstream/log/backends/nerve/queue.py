"""A queue as nerve defines it in code: publishers and readers share the definition."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from millstream.log.errors import LogInputError


class NerveHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tables of the queue on one host (seed document nerve, "Queue definition"; its ``BackendConfig``).

    ``max_rps_per_thread`` is the maximum of commits per second for each table (0: unlimited); it does not limit reads.
    """

    dbname: str
    port: int = 3306
    table_parallelism: int = 4
    pointers_parallelism: int = 1
    max_rps_per_thread: int = 0


class NerveQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue called ``name`` on any number of hosts; on each it has its own ids, pointers and publisher.

    ``user`` and ``password_file`` are the account on all of them.
    """

    name: str
    hosts: Mapping[str, NerveHost]
    user: str = "root"
    password_file: str = ""

    def url(self, host: str) -> str:
        """The store on *host*, for :func:`millstream.log.open_store`. Raises :class:`LogInputError`."""
        found = self.hosts.get(host)
        if found is None:
            raise LogInputError(
                f"queue {self.name!r} is not on {host!r}; it is on "
                f"{', '.join(self.hosts) or 'no host'}: connect to that host"
            )
        shown = f"[{host}]" if ":" in host else host
        options = {
            "layout": "nerve",
            "shards": str(found.table_parallelism),
            "pointers": str(found.pointers_parallelism),
            "rps": str(found.max_rps_per_thread),
            "password_file": self.password_file,
        }
        query = "&".join(
            f"{name}={quote(value, safe='/')}" for name, value in options.items() if value not in {"", "0"}
        )
        return f"mysql://{quote(self.user, safe='')}@{shown}:{found.port}/{found.dbname}?{query}"
