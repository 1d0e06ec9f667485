"""Which errors of a failed connection to PostgreSQL are final."""

from __future__ import annotations

import pytest

from millstream.core.postgresql_refusals import is_refused_connection

_PREFIX = 'connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    "text",
    [
        'FATAL:  role "ada" does not exist',
        'FATAL:  role "ada" is not permitted to log in',
        'FATAL:  password authentication failed for user "ada"',
        "fe_sendauth: no password supplied",
        'FATAL:  no pg_hba.conf entry for host "127.0.0.1", user "ada", database "x", no encryption',
        'FATAL:  permission denied for database "x"',
        "SSL error: certificate verify failed",
        "server does not support SSL, but SSL was required",
        'invalid connection option "sslmod"',
        'invalid sslmode value: "requir"',
        'invalid integer value "soon" for connection option "connect_timeout"',
    ],
)
def test_a_connection_that_the_server_or_tls_refuses_is_final(text: str) -> None:
    assert is_refused_connection(_PREFIX + text)


@pytest.mark.parametrize(
    "text",
    [
        "Connection refused",
        "FATAL:  the database system is starting up",
        'FATAL:  too many connections for role "ada"',
        "server closed the connection unexpectedly",
    ],
)
def test_a_server_that_is_down_or_busy_may_answer_later(text: str) -> None:
    assert not is_refused_connection(_PREFIX + text)
