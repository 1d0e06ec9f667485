"""Recognizes a connection that PostgreSQL refuses for good, so that it is not retried."""

from __future__ import annotations

import re

_REFUSAL = re.compile(
    r'role ".*" (does not exist|is not permitted)|password|pg_hba\.conf|permission denied|certificate'
    r"|does not support SSL"
)


def is_refused_connection(text: str) -> bool:
    """Whether *text*, the error of a failed connection, says that the account, its password or TLS is refused.

    psycopg has no SQLSTATE for an error while it connects: only the texts of the server and of libpq.
    """
    return _REFUSAL.search(text) is not None
