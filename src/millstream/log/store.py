"""A store of logs, opened by URL."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from millstream.core.clock import Clock, SystemClock
from millstream.core.closing import ClosesOnExit
from millstream.log.backend import Backend
from millstream.log.backend_schemes import open_backend
from millstream.log.backends.durability import Durability
from millstream.log.backends.nerve.address import is_nerve
from millstream.log.backends.objects.bucket import OpenBucket, is_bucket_url
from millstream.log.errors import (
    LogInputError,
    LogNotFoundError,
    StorageBusyError,
    StorageFullError,
    StorageReadOnlyError,
    SystemLogError,
    WriterBusyError,
)
from millstream.log.kinds import COPYING, KIND, SYSTEM, SYSTEM_KINDS, Kind, is_system
from millstream.log.log import Log
from millstream.log.runtime.context import LogContext
from millstream.log.runtime.scheduler_thread import SchedulerThread
from millstream.log.runtime.tail import Tail
from millstream.log.runtime.writer_refusals import WriterRefusal, WriterRefusals
from millstream.log.spec import LogSpec, require_owner
from millstream.log.tiering import Compaction, OpenObjects, TierObjects
from millstream.log.tiering.backend import TieredBackend
from millstream.log.tiering.spec import MIN_COMMITS
from millstream.log.upkeep.migration import LegacyLogNames

LEASE_SECONDS = 15.0
"""How long a writer that sends no heartbeat keeps others out."""

BUCKET_LINGER = 0.1
"""How long a writer of a log in a bucket waits for company, in seconds: at most 10 commits a second."""

BUCKET_COMMITS = 500
"""After how many commits a log in a bucket is compacted."""


class LogStore(ClosesOnExit):
    """A place that holds logs. Thread-safe; close it, or use it in a ``with`` block."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        lease_seconds: float = LEASE_SECONDS,
        bodies_only: bool = False,
        open_objects: OpenObjects | None = None,
        read_only: bool = False,
        min_linger: float = 0.0,
        compaction: Compaction | None = None,
    ) -> None:
        """Logs in *backend*, which with *bodies_only* keeps nothing but the bodies of messages.

        *open_objects* opens the place that older blocks were moved to. A store of the format before is brought to the
        present one (:mod:`millstream.log.upkeep.migration`), unless it is *read_only* or nothing can be written there.
        Writers wait *min_linger* seconds for company before they commit less than a block. Logs in a bucket are
        compacted by *compaction*; without it they are not.
        """
        self._bodies_only = bodies_only
        self._names = LegacyLogNames(backend, clock, lease_seconds, bodies_only=bodies_only)
        if not read_only:
            with contextlib.suppress(StorageBusyError, StorageFullError, StorageReadOnlyError):
                backend.upgrade()
        hot = self._names.find(migrate=not read_only)
        self._backend = TieredBackend(hot, open_objects or _refuse_objects)
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._min_linger = min_linger
        self._compaction = compaction
        self._scheduler = SchedulerThread(clock)
        self._renewals = SchedulerThread(clock, "millstream-log-renewals")
        self._tails: dict[str, Tail] = {}
        self._refusals = WriterRefusals()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The URL of the store, from which :func:`open_store` opens it in any process."""
        return self._backend.url

    @property
    def refusals(self) -> Sequence[WriterRefusal]:
        """The logs of which this object was refused the writer's lease, and has not written to since."""
        return self._refusals.all()

    def logs(self) -> Sequence[str]:
        """The names of all logs, sorted."""
        return self._names.logs()

    def has(self, name: str) -> bool:
        """Whether there is a log *name*: one that was just made may be missing from :meth:`logs`, not from here."""
        if self._names.is_taken(name):
            return False
        try:
            self._backend.get_state(name, KIND)
        except LogNotFoundError:
            return False
        return True

    def kinds(self) -> Mapping[str, Kind]:
        """The names of all logs, sorted, and what each is for; ``unknown`` if a log is too damaged to tell."""
        return cast("Mapping[str, Kind]", self._names.kinds())

    def last_ids(self, names: Iterable[str]) -> Mapping[str, int]:
        """The last durable id (0 in an empty log) of each of the logs *names*. Raises :class:`LogNotFoundError`."""
        listed = self._backend.last_ids()
        return {name: listed[name] if name in listed else self._backend.extent(name).last_id for name in names}

    def log(self, spec: LogSpec, *, create: bool = True, first_id: int = 1) -> Log:
        """The log of *spec*, made where it is absent. Without *create* that raises :class:`LogNotFoundError`.

        A log that is made begins at *first_id*: what it is a copy of may have been trimmed. A system log is made and
        written by those who name its kind; for all others it is there to be read: :class:`SystemLogError`.
        """
        if first_id < 1:
            raise LogInputError(f"log {spec.name!r} cannot begin at id {first_id}: set first_id to 1 or more")
        self._names.refresh(spec.name)
        if create:
            require_owner(spec, "made or written")
            self._create(spec, first_id)
        else:
            self._find(spec.name)
            self._check_kind(spec)
        with self._lock:
            tail = self._tails.setdefault(spec.name, Tail(spec.name, self._clock))
        context = LogContext(
            backend=self._backend,
            clock=self._clock,
            scheduler=self._scheduler,
            renewals=self._renewals,
            tail=tail,
            lease_seconds=self._lease_seconds,
            names=self._names,
            refusals=self._refusals,
            bodies_only=self._bodies_only,
            min_linger=self._min_linger,
            compaction=self._compaction,
        )
        return Log(spec, context)

    def log_to_copy(self, source: Log) -> Log:
        """The log that *source* is copied to, of its name and kind, made where it is absent.

        A system log is copied to a store where its name was never written. Copying continues until the copy's owner
        opens it. Raises :class:`SystemLogError`.
        """
        spec, first_id = LogSpec(source.name, kind=source.kind), source.first_id
        if not is_system(spec.name):
            return self.log(spec, first_id=first_id)
        self._backend.create(spec.name, first_id=first_id, kind=spec.kind)
        copying = self._backend.get_state(spec.name, COPYING)
        if self._backend.head(spec.name).epoch == 0:
            self._backend.put_state(spec.name, COPYING, b"1", version=copying.version)
        elif not copying.value:
            raise SystemLogError(
                f"{spec.name!r} in {self.url} is a system log, which only Millstream writes: copy to a "
                "store that has no log of this name"
            )
        return self.log(spec, create=False)

    def _create(self, spec: LogSpec, first_id: int) -> None:
        name, kind = spec.name, spec.kind
        if self._names.is_taken(name):
            raise WriterBusyError(
                f"an older release created a system log with the name {name!r}, which could not be renamed to "
                f"{SYSTEM + name!r}: stop the writers of this log, and check that the store is writable and has free "
                "space"
            )
        self._names.settle(name)
        self._backend.create(name, first_id=first_id, kind=kind)
        if kind == "application":
            return
        self._check_kind(spec)
        if is_system(name):
            copying = self._backend.get_state(name, COPYING)
            if copying.value:  # its keeper has it now
                self._backend.put_state(name, COPYING, b"", version=copying.version)
            return
        state = self._backend.get_state(name, KIND)
        stored = state.value.decode()
        if not stored or (stored == "application" and self._backend.head(name).last_id == 0):
            self._backend.put_state(name, KIND, kind.encode(), version=state.version)

    def _check_kind(self, spec: LogSpec) -> None:
        """Refuse a *spec* that states another kind for a system log."""
        if spec.kind not in SYSTEM_KINDS:
            return
        stored = self._backend.get_state(spec.name, KIND).value.decode() or self._names.kind(spec.name)
        if stored != spec.kind:
            raise LogInputError(
                f"log {spec.name!r} is of kind {stored!r}, not {spec.kind!r}: open the log without a kind"
            )

    def _find(self, name: str) -> None:
        try:
            if not self._names.is_taken(name):
                self._backend.head(name)
                return
        except LogNotFoundError:
            if SYSTEM + name not in self.logs():
                raise
        raise LogNotFoundError(f"there is no log {name!r}: the system log is called {SYSTEM + name!r}")

    def close(self) -> None:
        """Close the store. Close writers and readers first; closing again does nothing."""
        self._scheduler.close()
        self._renewals.close()
        self._backend.close()

    def __reduce__(self) -> str:
        raise TypeError(f"a log store cannot be passed to another process: call open_store({self.url!r}) there")


def open_store(
    url: str,
    clock: Clock | None = None,
    *,
    create: bool = True,
    read_only: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    open_objects: OpenObjects | None = None,
    open_bucket: OpenBucket | None = None,
    bucket_linger: float = BUCKET_LINGER,
    bucket_commits: int = BUCKET_COMMITS,
    durability: Durability | None = None,
) -> LogStore:
    """Open the store at *url*.

    ``sqlite:///relative/path.db`` and ``sqlite:////absolute/path.db`` are files, ``segments:///relative/folder`` and
    ``segments:////absolute/folder`` are folders, ``mysql://user:password@host/database`` is a database of MariaDB or
    MySQL, ``postgresql://user:password@host/database`` one of PostgreSQL (all made where absent, unless *create* is
    False or it is opened *read_only*), ``memory://`` is a fresh store that vanishes with the object. With
    ``?layout=nerve&shards=4`` a database of MariaDB has its logs in the nerve table layout. Blocks that
    were moved to an object store are read with *open_objects*, and ``s3://bucket/prefix`` keeps the logs themselves in
    the bucket that *open_bucket* opens: :func:`millstream.stores.tiers.open_log_store` has both. There, each commit is
    a request that is paid for: a writer collects messages for *bucket_linger* seconds, unless they fill a block; and
    after *bucket_commits* commits (0: never) those are merged into sealed objects in the same bucket.

    *durability*, or ``?durability=os`` at the end of the URL of files, says what a confirmed message survives:
    ``fsync`` (the default) a power loss, ``os`` the death of the process. A database has the durability of its
    server's settings (``millstream doctor --store URL`` looks at them), and memory has none. Raises
    :class:`LogInputError`, :class:`LogNotFoundError`, :class:`StorageError`.
    """
    clock = clock or SystemClock()
    if not 0 <= bucket_linger <= 60:
        raise LogInputError(f"bucket_linger must be 0 to 60 seconds, not {bucket_linger}")
    if bucket_commits and bucket_commits < MIN_COMMITS:
        raise LogInputError(f"bucket_commits must be 0 or at least {MIN_COMMITS}, not {bucket_commits}")
    compaction = Compaction(commits=bucket_commits) if bucket_commits else None
    backend = open_backend(
        url, clock, create=create, read_only=read_only, durability=durability, open_bucket=open_bucket
    )
    try:
        return LogStore(
            backend,
            clock,
            lease_seconds=lease_seconds,
            bodies_only=is_nerve(url),
            open_objects=open_objects,
            read_only=read_only,
            min_linger=bucket_linger if is_bucket_url(url) else 0.0,
            compaction=compaction,
        )
    except BaseException:
        backend.close()
        raise


def _refuse_objects(url: str) -> TierObjects:
    raise LogInputError(
        f"open_store() cannot read the tier {url}, to which older messages of the log were moved: open the store with "
        "millstream.stores.tiers.open_log_store()"
    )
