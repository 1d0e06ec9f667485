"""Checks of the copies of a node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from millstream.core.cached import locked_cached_property
from millstream.mill.configured_stores import is_system
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.superseded import recheck_superseded
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult
from millstream.node.audit import AuditPart
from millstream.node.databases import DatabasesPart
from millstream.node.stores import StoresPart


class ChecksPart:
    """Checks copies, and writes down what checks found."""

    def __init__(self, databases: DatabasesPart, stores: StoresPart, audit: AuditPart) -> None:
        self._databases = databases
        self._stores = stores
        self._audit = audit

    @locked_cached_property
    def bit_log(self) -> BitLog:
        """Results of checks since the last report of each space."""
        return BitLog(self._databases.own)

    @locked_cached_property
    def checker(self) -> BitChecker:
        """Checks single items by all four sources."""
        return BitChecker(self._stores.providers, self._stores.manifest, self._audit.lookup)

    @locked_cached_property
    def writer(self) -> CheckWriter:
        """Writes down what checks found."""
        return CheckWriter(self._stores.manifest, self.bit_log)

    def check_unrecorded(self, spaces: Collection[str], done: Callable[[], Iterable[CheckResult]]) -> list[CheckResult]:
        """Check what the audit has in *spaces* (in all, where empty), and neither the manifest nor the results *done*.

        The results are written down, too.
        """
        places = [
            (store, space)
            for store, space in self._audit.log.spaces()
            if not is_system(space) and (not spaces or space in spaces)
        ]
        lost = {item for place in places for item in self._audit.lookup.unrecorded(*place)}
        if lost:
            lost -= {ItemRef(one.store, one.space, one.content_id) for one in done()}
        results = [self.checker.check(item).result for item in sorted(lost, key=msgspec.structs.astuple)]
        self.writer.write(results)
        return results

    def recheck_superseded(self, findings: Iterable[CheckResult]) -> list[CheckResult]:
        """New results for *findings* of a sweep that changes or later checks have overtaken, also written down.

        To be called before the findings are written down: they change the manifest, too.
        """
        results = list(recheck_superseded(findings, self._stores.manifest, self.checker))
        self.writer.write(results)
        return results
