"""The location of the sealed objects of one log: the bucket of the log itself, or the target of its tiering."""

from __future__ import annotations

from millstream.core.cached import locked_cached_property
from millstream.log.backend import Backend
from millstream.log.errors import LogInputError
from millstream.log.tiering.objects import KeepsObjects, OpenObjects, OwnObjects, TierObjects
from millstream.log.tiering.sealed_objects import SealedObject, read_tiering

OWN_FOLDER = "sealed"
"""The prefix of the names of objects in the bucket of their log."""


class ObjectPlaces:
    """The places of the objects of *log*, each opened when it is first needed."""

    def __init__(self, backend: Backend, log: str, open_objects: OpenObjects) -> None:
        self.backend, self.log, self._open_objects = backend, log, open_objects

    @locked_cached_property
    def tier(self) -> TierObjects:
        """The objects at the URL of the log's tiering. Raises :class:`LogInputError` where it has none."""
        tiering = read_tiering(self.backend, self.log)
        if tiering is None:
            raise LogInputError(
                f"log {self.log!r} has no tier: set its URL with `millstream log tier {self.log} --to URL`"
            )
        return self._open_objects(tiering.url)

    @property
    def own(self) -> OwnObjects | None:
        """The objects in the log's own bucket; None where it is not in one."""
        return self.backend.own_objects(self.log) if isinstance(self.backend, KeepsObjects) else None

    def of(self, row: SealedObject) -> TierObjects:
        """The location of the object of *row*."""
        if not row.in_store:
            return self.tier
        if self.own is None:
            raise LogInputError(
                f"log {self.log!r} has objects in its bucket, but {self.backend.url} is not a bucket: open the store "
                "by the URL of the bucket that the log was created in (s3://BUCKET/PREFIX)"
            )
        return self.own

    def url(self, rows: list[SealedObject]) -> str:
        """The URL of the tiering where one of *rows* lies there, else of the store."""
        if any(not row.in_store for row in rows):
            tiering = read_tiering(self.backend, self.log)
            if tiering is not None:
                return tiering.url
        return self.backend.url

    def delete(self, row: SealedObject) -> None:
        """Delete the object of *row*, with its Parquet file; nothing happens where they are gone."""
        if row.parquet is not None:
            self.of(row).delete(row.parquet.name)
        self.of(row).delete(row.name)
