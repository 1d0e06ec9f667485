"""The tables ``stores`` of the settings."""

from __future__ import annotations

from millstream.core.amounts import Size
from millstream.core.settings import Section


class StoreSettings(Section, frozen=True):
    """One storage provider. ``{data}`` in its URL stands for the node's data folder.

    A URL holds no secret: one of S3 says which profile, or which environment variables, hold its credentials. With
    ``requests=RATE`` in its query no more than so many requests a second go to the store, of a process of the node, and
    of all tasks of a job on Spark together. With
    ``audited`` every change that is made through the node is written to the audit log, and duplicated at once.
    `millstream mill statistics` says when a store holds more than ``most_bytes`` (0: any number).
    """

    url: str
    audited: bool = False
    most_bytes: Size = Size(0)
