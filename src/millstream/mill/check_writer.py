"""The one who writes down what checks found: in the bit log, and beside the checksums of the content index."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.mill.bit_log import BitLog
from millstream.mill.manifest import CheckResult, Manifest


class CheckWriter:
    """Writes to *bit_log*, where there is one, and to *manifest*. Durable when :meth:`write` returns."""

    def __init__(self, manifest: Manifest, bit_log: BitLog | None = None) -> None:
        self._manifest = manifest
        self._bit_log = bit_log

    def write(self, results: Sequence[CheckResult]) -> None:
        """Write down *results*; doing so twice changes nothing more."""
        if self._bit_log is not None:
            self._bit_log.append(results)
        self._manifest.apply(results)
