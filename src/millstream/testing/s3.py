"""Fresh, empty stores on an S3 server, and a client that goes wrong on purpose."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.stores.s3 import S3Store, connect, parse_address
from millstream.testing.swift import ENVIRONMENT

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3Server:
    """A bucket on the server at *url* in which each store gets a prefix of its own.

    The environment variables with the credentials are set where they are missing.
    """

    def __init__(self, url: str) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.address = parse_address(url)
        self.client: S3Client = connect(self.address)
        self._run = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._numbers = itertools.count()
        S3Store(self.address, create=True, client=self.client)

    def new_url(self) -> str:
        """The URL of a store that nobody has used."""
        prefix = f"{self.address.prefix}{self._run}-{next(self._numbers)}/"
        return msgspec.structs.replace(self.address, prefix=prefix).url

    def new_store(self, **options: Any) -> S3Store:
        """A store that nobody has used; *options* are those of :class:`S3Store`. All of them share one client."""
        return S3Store(parse_address(self.new_url()), **{"client": self.client, **options})


class FaultyClient:
    """The client *real*, but *fault* is called with each operation's name before it is done, and once more after it.

    The second argument is ``before`` or ``after``; what *fault* raises is the outcome. Counts the calls by operation.
    """

    def __init__(self, real: S3Client, fault: Callable[[str, str], None]) -> None:
        self._real, self._fault = real, fault
        self._lock = threading.Lock()
        self.calls: dict[str, int] = {}

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            with self._lock:
                self.calls[operation] = self.calls.get(operation, 0) + 1
            self._fault(operation, "before")
            response = getattr(self._real, operation)(**arguments)
            self._fault(operation, "after")
            return response

        return call
