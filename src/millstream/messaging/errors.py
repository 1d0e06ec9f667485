"""Everything that messaging raises on purpose.

::

    MessagingError
    ├── MissingExtraError        grpcio is not installed
    ├── BrokerError              the broker could not be started or has failed
    │   ├── DamagedJournalError
    │   ├── TopicError           a topic cannot be made as asked
    │   ├── TopicNotFoundError
    │   ├── GroupNotFoundError
    │   ├── ConnectionNotFoundError
    │   ├── ClientNotRespondingError  a client does not answer
    │   ├── ChangeNotRecordedError    a change was made, and not recorded
    │   ├── ChangeNotMadeError        a change was not made, because it was not recorded
    │   ├── BrokerCredentialsError    keys or certificates cannot be used as they are
    │   └── UnreachableError     no broker answers there
    ├── StatusError              a call is answered with this status
    └── ClientError              what a client's call came to: its tree is in ``messaging/client/errors.py``
"""

from __future__ import annotations

from millstream.core.errors import InputError, MillstreamError, NotFoundError


class MessagingError(MillstreamError):
    """Messaging could not do what was asked."""


class MissingExtraError(MessagingError):
    """Messaging needs grpcio, protobuf and cryptography: pip install 'millstream[messaging]'."""


class BrokerError(MessagingError):
    """The broker could not do what was asked."""


class DamagedJournalError(BrokerError):
    """A message of the broker's journal is not one that a broker writes."""


class TopicError(BrokerError, InputError):
    """The topic cannot be made as asked."""


class TopicNotFoundError(BrokerError, NotFoundError):
    """There is no such topic."""


class GroupNotFoundError(BrokerError, NotFoundError):
    """There is no such consumer group."""


class ConnectionNotFoundError(BrokerError, NotFoundError):
    """There is no such client."""


class ClientNotRespondingError(BrokerError):
    """A client does not answer what it was asked."""

    transient = True


class ChangeNotRecordedError(BrokerError):
    """The change was made, but could not be recorded in the operator audit log; the broker's error output says why."""


class ChangeNotMadeError(BrokerError):
    """The change was not made, because it could not be recorded in the operator audit log: see the broker's output."""


class BrokerCredentialsError(BrokerError, InputError):
    """The keys or certificates of a broker cannot be used as they are."""


class UnreachableError(BrokerError):
    """No broker answers there."""

    transient = True


class BrokerElsewhereError(BrokerError, NotFoundError):
    """The broker of the node runs in another process, which has to be asked."""

    def __init__(self, place: str = "`millstream node ls` shows which") -> None:
        super().__init__(f"the broker of this node runs in another process ({place}): use the console of that process")


class StatusError(MessagingError):
    """A call that is answered with a status other than OK: ``code`` is one of the protocol's ``Code``."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
