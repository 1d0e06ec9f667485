"""Recognizes a connection that PostgreSQL refuses for good, so that it is not retried."""

from __future__ import annotations

import re

_REFUSAL = re.compile(
    r'role ".*" (does not exist|is not permitted)|password|pg_hba\.conf|permission denied|certificate'
    r"|does not support SSL"
)

_INVALID_OPTION = re.compile(r"invalid (connection option|URI query parameter|\w+ value)\b")


def is_refused_connection(text: str) -> bool:
    """Whether *text*, the error of a failed connection, says that the account, its password or TLS is refused, or an
    option of its URL.

    psycopg has no SQLSTATE for an error while it connects: only the texts of the server and of libpq.
    """
    return _REFUSAL.search(text) is not None or is_invalid_option(text)


def is_invalid_option(text: str) -> bool:
    """Whether *text*, the error of a failed connection, says that libpq does not know an option, or its value."""
    return _INVALID_OPTION.search(text) is not None
