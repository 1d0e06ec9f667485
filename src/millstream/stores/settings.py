"""The tables ``stores`` of the settings."""

from __future__ import annotations

from millstream.core.amounts import Size
from millstream.core.settings import Section


class StoreSettings(Section, frozen=True):
    """One storage provider. ``{data}`` in its URL stands for the node's data folder.

    A URL contains no secret: an S3 URL names the profile, or the environment variables, with its credentials.
    ``requests=RATE`` in its query limits the requests per second of each process of the node, and of all tasks of a
    Spark job together. With ``audited`` every change through the node is recorded in the audit log, and duplicated at
    once. `millstream mill statistics` reports a store with more than ``most_bytes`` (0: no limit).
    """

    url: str
    audited: bool = False
    most_bytes: Size = Size(0)
