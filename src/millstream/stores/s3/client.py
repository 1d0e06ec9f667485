"""Calls to one S3 server: a client made when it is first needed, errors in our words, bounded retries."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy
from millstream.stores.protocol import StoreInputError
from millstream.stores.s3.address import S3Address
from millstream.stores.s3.errors import S3MissingError, translated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECTIONS = 64
"""Connections that are kept open to one server; more threads than that wait for one another."""

RETRIES = RetryPolicy(attempts=5, first=0.2, longest=10.0)
"""How a call is retried while there is no answer: for three seconds where it fails at once; where it hangs, each
call lasts as long as the time-outs of :func:`connect`."""


class S3Calls:
    """The operations of S3 on the bucket of *address*, each retried by *policy* while it does not answer."""

    def __init__(self, address: S3Address, policy: RetryPolicy, clock: Clock, client: S3Client | None = None) -> None:
        self.address, self.policy, self.clock = address, policy, clock
        self._client, self._owns_client = client, client is None
        self._lock = threading.Lock()

    def __call__(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """The response of *operation* (``head_object`` …). Raises :class:`StoreError` of the fitting kind."""
        return self.policy.call(lambda: self.once(operation, **arguments), self.clock)

    def once(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """As calling, but tried once only."""
        key = arguments.get("Key")
        doing = f"{operation} of {self.address}" + (f", key {key!r}," if key is not None else "")
        with translated(doing):
            call = getattr(self._connected(), operation)
            response: Mapping[str, Any] = call(Bucket=self.address.bucket, **arguments)
            return response

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._owns_client:
            client.close()

    def _connected(self) -> S3Client:
        with self._lock:
            if self._client is None:
                self._client = connect(self.address)
            return self._client


def connect(address: S3Address) -> S3Client:
    """A client for the server of *address*. Raises :class:`S3MissingError`, :class:`StoreInputError`."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.session import Session
    except ImportError as error:
        raise S3MissingError from error
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1},  # RetryPolicy does it, and knows which calls may be repeated
        request_checksum_calculation="when_required",  # we send the SHA-256 ourselves
        response_checksum_validation="when_required",  # the caller checks bytes and must see damage
        s3={"addressing_style": "path" if address.endpoint else "auto"},
        user_agent_extra="millstream",
    )
    keys: Any = _keys(address.credentials)
    with translated(f"connecting to {address}"):
        core = Session()
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parsed_time)
        session = boto3.Session(profile_name=address.profile, region_name=address.region, botocore_session=core, **keys)
        region = session.region_name or "us-east-1"
        client: S3Client = session.client("s3", endpoint_url=address.endpoint, region_name=region, config=config)
        return client


def parsed_time(value: Any) -> datetime:
    """The time that *value* in a response means, as botocore reads it.

    Its own parser also reads other forms than S3 gives, and took three quarters of the time of a listing; it is asked
    about those only. Raises :class:`ValueError`.
    """
    with contextlib.suppress(ValueError, TypeError):
        time = datetime.fromisoformat(value) if value[10:11] == "T" else parsedate_to_datetime(value)
        if time.tzinfo is not None:
            return time
    from botocore.utils import parse_timestamp

    return parse_timestamp(value)


def _keys(name: str | None) -> dict[str, str]:
    """The credentials in the environment variables that begin with *name*. None of them ever stands in a message."""
    if name is None:
        return {}
    names = {
        "aws_access_key_id": f"{name}_ACCESS_KEY_ID",
        "aws_secret_access_key": f"{name}_SECRET_ACCESS_KEY",
        "aws_session_token": f"{name}_SESSION_TOKEN",
    }
    keys = {argument: os.environ[variable] for argument, variable in names.items() if os.environ.get(variable)}
    if not {"aws_access_key_id", "aws_secret_access_key"} <= keys.keys():
        raise StoreInputError(
            f"credentials are missing: set {name}_ACCESS_KEY_ID and {name}_SECRET_ACCESS_KEY in the environment"
        )
    return keys
