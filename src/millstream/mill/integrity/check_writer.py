"""Writes the results of checks to the bit log, and beside the checksums of the content index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from millstream.core.sql import writing
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.manifest import CheckResult, Manifest
from millstream.mill.manifest_table import IntactItems
from millstream.mill.merge_join import groups

if TYPE_CHECKING:
    from millstream.mill.integrity.checker import CheckedGroup

_GROUP = 10_000


class CheckWriter:
    """Writes to *bit_log*, where there is one, and to *manifest*. Durable when :meth:`write` returns."""

    def __init__(self, manifest: Manifest, bit_log: BitLog | None = None) -> None:
        self._manifest = manifest
        self._bit_log = bit_log

    def write_group(self, group: CheckedGroup) -> None:
        """Write down all checks of *group* in one transaction, where there is one database."""
        with self._recording():
            self.write_intact(group.intact)
            self.write([one.result for one in group.others])

    def write(self, results: Iterable[CheckResult]) -> None:
        """Write down *results*, group by group; doing so twice changes nothing more."""
        for group in groups(results, _GROUP):
            with self._recording():
                if self._bit_log is not None:
                    self._bit_log.append(group)
                self._manifest.writer.apply(group)

    def write_intact(self, items: IntactItems) -> None:
        """Write down the checks of *items*, like :meth:`write`."""
        with self._recording():
            if self._bit_log is not None:
                self._bit_log.append_intact(items)
            self._manifest.writer.apply_intact(items)

    def _recording(self) -> AbstractContextManager[object]:
        """One transaction for both, where they are in one database."""
        together = self._bit_log is not None and self._bit_log.engine is self._manifest.writer.engine
        return writing(self._manifest.writer.engine) if together else contextlib.nullcontext()
