"""Options for the connection to a broker: access key and TLS."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.core.errors import InputError

if TYPE_CHECKING:
    from millstream.messaging.client import Options

Command = TypeVar("Command", bound=Callable[..., Any])

_file = click.Path(path_type=Path, exists=True, dir_okay=False)
_MOST_BYTES = 1 << 20


def connection_options(command: Command) -> Command:
    """Give *command* the options of a connection to a broker; it gets them as ``options``."""

    @click.option(
        "--access-key", metavar="KEY", default="", help="Sign calls with this access key; requires --secret-file."
    )
    @click.option("--secret-file", type=_file, help="File with the secret of --access-key.")
    @click.option("--token-file", type=_file, help="File with a session token of --access-key.")
    @click.option("--tls", is_flag=True, help="Use TLS, and verify the server's certificate.")
    @click.option(
        "--tls-ca", type=_file, help="Use TLS, and verify by these certificates (PEM) instead of the system's."
    )
    @click.option(
        "--tls-certificate",
        type=_file,
        help="Client certificate (PEM) for TLS, if the server requires one; requires --tls-key.",
    )
    @click.option("--tls-key", type=_file, help="Private key (PEM) of --tls-certificate.")
    @functools.wraps(command)
    def with_connection(
        *args: Any,
        access_key: str,
        secret_file: Path | None,
        token_file: Path | None,
        tls: bool,
        tls_ca: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        **kwargs: Any,
    ) -> Any:
        from millstream.messaging.client import Credentials, Options, Tls

        if bool(access_key) != bool(secret_file):
            raise click.UsageError("--access-key and --secret-file must be given together")
        if bool(tls_certificate) != bool(tls_key):
            raise click.UsageError("--tls-certificate and --tls-key must be given together")
        credentials = Credentials(access_key, _text(secret_file), _text(token_file)) if access_key else None
        encrypts = tls or tls_ca or tls_certificate
        encryption = Tls(_read(tls_ca), _read(tls_certificate), _read(tls_key)) if encrypts else None
        return command(*args, options=Options(credentials=credentials, tls=encryption), **kwargs)

    return with_connection  # type: ignore[return-value]


def administration_options(command: Command) -> Command:
    """Give *command* :func:`connection_options` and ``--url URL``; it gets the node there as ``node``, or None."""

    @click.option(
        "--url",
        metavar="URL",
        help="Call the HTTP interface of the broker's node, such as http://127.0.0.1:8460, not the broker.",
    )
    @click.option("--user", metavar="NAME", default="", help="Sign in to --url as this user; requires --password-file.")
    @click.option("--password-file", type=_file, help="File with the password of --user.")
    @connection_options
    @functools.wraps(command)
    def with_node(
        *args: Any, url: str | None, user: str, password_file: Path | None, options: Options, **kwargs: Any
    ) -> Any:
        if url and (kwargs["endpoint"] or options.credentials):
            raise click.UsageError(
                "--url cannot be combined with --broker or --access-key: give --url with --user, or --broker with "
                "--access-key"
            )
        if bool(user) != bool(password_file) or (user and not url):
            raise click.UsageError("--user and --password-file must be given together, and only with --url")
        node = None
        if url:
            from millstream.rest.broker_client import BrokerClient

            ca = options.tls.ca if options.tls else None
            node = BrokerClient(url=url, user=user, password=_text(password_file), ca=ca)
        return command(*args, options=options, node=node, **kwargs)

    return with_node  # type: ignore[return-value]


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)


def _text(path: Path | None) -> str:
    try:
        return (_read(path) or b"").decode().strip()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not valid UTF-8: name the file that contains the password or the secret, and save this file "
            "as UTF-8"
        ) from error
