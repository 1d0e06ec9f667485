"""What can go wrong while ingesting.

::

    IngestError
    ├── IngestInputError          what was handed in cannot be used
    ├── BrokerRefusedError        the broker does not let us in, or not to what was asked for
    │   └── SessionTakenError     another client has our session
    ├── BrokerUnavailableError    the broker cannot be reached now
    └── ReceiptsError             the state of the session cannot be used
    MalformedError                a message cannot be made a record; it is put aside
"""

from __future__ import annotations

from millstream.core.errors import InputError, MillstreamError


class IngestError(MillstreamError):
    """The messages of the broker could not be taken."""


class IngestInputError(IngestError, InputError):
    """This cannot be ingested as it was asked for."""


class BrokerRefusedError(IngestError):
    """The broker refused; asking again will not help."""


class SessionTakenError(BrokerRefusedError):
    """Another client has taken over our session: on a node with several processes the one that has the ingest now."""

    transient = True


class BrokerUnavailableError(IngestError):
    """The broker cannot be reached at present."""

    transient = True


class ReceiptsError(IngestError, InputError):
    """The file that says which messages of a session were received cannot be used."""


class MalformedError(Exception):
    """A message is not a record of the shape that was asked for.

    ``reason`` is one word for counting; the text says what exactly is wrong.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
