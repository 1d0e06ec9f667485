"""Batching on a node: its rules, its services and where these keep their states."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from millstream.batching import Rulebook
from millstream.batching.default_limits import BATCHING_FOLDER, read_default_limits
from millstream.batching.errors import ConfigError
from millstream.batching.local_state import StateFile, UnsavedState, local_state
from millstream.batching.rule_changes import (
    BatchedRules,
    batched_rules,
    change_rules,
    read_rules,
    request_change,
)
from millstream.batching.service import BatchService
from millstream.batching.service_state import batched_pair
from millstream.batching.ticks import Ticker
from millstream.core.cached import locked_cached_property
from millstream.core.documents import Document, Documents, FileDocument
from millstream.core.metric_collection.hook import LabelledMetrics, Metrics
from millstream.log import Log, LogSpec, WriterBusyError
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.logs import LogsPart

_SUFFIX = ".state"


class BatchingPart:
    """Makes batch services on the node's logs."""

    def __init__(self, context: NodeContext, logs: LogsPart, databases: DatabasesPart) -> None:
        self._context = context
        self._logs = logs
        self._databases = databases
        self._services: list[BatchService] = []
        self._services_lock = threading.Lock()
        self._pairs: dict[str, tuple[int, tuple[str, str] | None]] = {}

    @locked_cached_property
    def rules(self) -> Rulebook:
        """The rules by which this node batches, with what is different for some sources and keys."""
        self._databases.prepare()  # a new node records its default limits
        return self._context.settings.batching.rules_with(read_default_limits(self._documents))

    def service(
        self, log: str, output: str, *, ticks: Ticker | None = None, metrics: Metrics | None = None
    ) -> BatchService:
        """Batches *log* into the log *output* by this node's rules, from where it was; closed with the node.

        *ticks* appends ticks to *log*: see :class:`BatchService`. Without *metrics* it reports to those of the node.
        """
        store, clock = self._logs.store, self._context.clock
        source, sink = store.log(LogSpec(log), create=False), store.log(LogSpec(output, kind="batches"))
        metrics = metrics or LabelledMetrics(self._context.metrics, log=log)
        service = BatchService(source, sink, self.rules, self.state(output), ticks=ticks, clock=clock, metrics=metrics)
        self._keep(service)
        return service

    def _keep(self, service: BatchService) -> None:
        """Close *service* with the node, and forget those that were closed: a role can begin and end any number of
        times."""
        with self._services_lock:
            if not self._services:
                self._context.resources.callback(self._close_services)
            self._services = [*(one for one in self._services if not one.closed), service]

    def _close_services(self) -> None:
        with contextlib.ExitStack() as stack:
            for service in self._services:
                stack.callback(service.close)

    @property
    def patience(self) -> int:
        """The longest time (microseconds) from an event until it is batched or rejected, by the rules of the settings
        and those of the services in this process."""
        own = self._context.settings.batching.rules.patience
        return max([own, *(service.patience for service in self._services if not service.closed)])

    def rules_of(self, output: str | None) -> Rulebook:
        """The rules of the log of batches *output*, with all changes; those of this node where they never changed, and
        for None."""
        if output is None:
            return self.rules
        return read_rules(self._logs.store.log(LogSpec(output), create=False)) or self.rules

    def source_of(self, output: str) -> str:
        """The log whose batches are in the log *output*. Raises :class:`ConfigError` where it is not known."""
        for log, batches in self.batched_pairs():
            if batches == output:
                return log
        raise ConfigError(
            f"{output!r} is not the output of a batch service of this node: name a log of batches, or add LOG = "
            f"{output!r} to the section serve.batching of the settings"
        )

    def rules_status(self, output: str) -> BatchedRules | None:
        """By which rules the log *output* was made, and how far; None where it has no batches yet."""
        return batched_rules(*self._open_pair(output), self.state(output))

    def change_rules(self, output: str, since: int | None = None) -> Rulebook:
        """Let the rules of the settings begin at *since* (see :func:`~millstream.batching.rule_changes.change_rules`);
        returns all rules of the log *output*. A service that is at work there, on any host, changes them itself.

        Raises the errors of both ways, and :class:`~millstream.anchoring.BatchFormatError` for rules that amend batches
        where batches of *output* are anchored, or will be by ``serve``."""
        from millstream.anchoring import BatchJournal
        from millstream.anchoring.feed import CONSUMER, refuse_amending_rules

        source, batches = self._open_pair(output)
        fed = BatchJournal(self._databases.own).fed(output)  # a copy of the log may have no consumer
        to_be_anchored = output in self._context.settings.serve.batching.values()
        if to_be_anchored or fed is not None or CONSUMER in batches.info().consumers:
            refuse_amending_rules(self.rules)
        arguments = source, batches, self.state(output), self.rules, since
        clock = self._context.clock
        try:
            return change_rules(*arguments, clock=clock)
        except WriterBusyError:
            return request_change(*arguments, clock=clock)

    def _open_pair(self, output: str) -> tuple[Log, Log]:
        store = self._logs.store
        return store.log(LogSpec(self.source_of(output)), create=False), store.log(LogSpec(output), create=False)

    def batched_pairs(self) -> Sequence[tuple[str, str]]:
        """The logs that are batched, each with the log that gets its batches: those of the settings, and those of each
        batch service or stream that has a state on this node, in whichever process it runs.
        """
        found = dict.fromkeys(self._context.settings.serve.batching.items())
        for name, version in self._documents.versions(BATCHING_FOLDER).items():
            if not name.endswith(_SUFFIX):
                continue
            known = self._pairs.get(name)
            if known is None or known[0] != version:
                known = self._pairs[name] = version, batched_pair(self._documents.document(name))
            if known[1] is not None:
                found[known[1]] = None
        return list(found)

    def state(self, output: str) -> Document:
        """The progress of the service that batches into the log *output*."""
        document = self._documents.document(self._state_name(output))
        return document if isinstance(document, FileDocument) else UnsavedState(document, self._local_state(output))

    @contextlib.contextmanager
    def state_file(self, output: str) -> Iterator[StateFile]:
        """:meth:`state` as a file, for a job on Spark: what the block writes into it is kept, at the end at the latest.

        Where the states are in a database, the file is removed at the end, once the database has what it contains.
        """
        document = self._documents.document(self._state_name(output))
        if isinstance(document, FileDocument):
            document.path.parent.mkdir(exist_ok=True)
            yield StateFile(document.path, lambda: None)
            return
        with local_state(document, self._local_state(output)) as state:
            yield state

    def _local_state(self, output: str) -> FileDocument:
        """The file in which a stream on this host keeps its state until the database has it."""
        return FileDocument(self._context.folder / self._state_name(output))

    def _state_name(self, output: str) -> str:
        return f"{BATCHING_FOLDER}/{output}{_SUFFIX}"

    @property
    def _documents(self) -> Documents:
        return self._databases.documents
