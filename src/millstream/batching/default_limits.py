"""The limits of batches where the settings set none. They are part of each batch id, so a node keeps those that it
began with.

A batch without a limit grows with its source, and one beyond 4,000,000 bytes fits in no batch file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.batching.errors import ConfigError
from millstream.core.decoding import prepared

if TYPE_CHECKING:
    from millstream.core.documents import Documents

BATCHING_FOLDER = "batching"
"""The folder of a node's documents with these limits and the states of batch services."""

_DOCUMENT = f"{BATCHING_FOLDER}/limits.json"


class DefaultLimits(msgspec.Struct, frozen=True):
    """At most this many records in a batch, and this many bytes of their bodies; None is no limit."""

    max_count: int | None = None
    max_bytes: int | None = None


NO_LIMITS = DefaultLimits()
"""Those of a node that was created before there were default limits."""

LIMITS_OF_NEW_NODES = DefaultLimits(max_count=5_000, max_bytes=1_000_000)
"""A batch file takes such a batch while key, source and headers of a message have 380 bytes on average: its line has
at most 150 bytes besides them and the body, and a body takes at most a third more in Base64."""


def record_default_limits(documents: Documents) -> None:
    """Let the new node of *documents* have :data:`LIMITS_OF_NEW_NODES`; one that has states of batching is not new."""
    if not documents.versions(BATCHING_FOLDER):
        documents.document(_DOCUMENT).create(msgspec.json.encode(LIMITS_OF_NEW_NODES))


def read_default_limits(documents: Documents) -> DefaultLimits:
    """The default limits of the node of *documents*. Raises :class:`ConfigError` where their document is not valid."""
    document = documents.document(_DOCUMENT)
    data = document.read()
    if data is None:
        return NO_LIMITS
    try:
        return msgspec.json.decode(data, type=prepared(DefaultLimits))
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{document} is not valid ({error}): restore these limits from a backup, or write the limits that the "
            f"batches of this node have; at first they were {msgspec.json.encode(LIMITS_OF_NEW_NODES).decode()}"
        ) from error
