"""Probes each store at intervals in a separate thread, so that a store that hangs delays nothing else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError
from millstream.mill.adoption.adopted_store import AdoptedStore, find_adopted_store
from millstream.mill.configured_stores import ConfiguredStores
from millstream.stores.protocol import StoreError, StoreUnavailableError
from millstream.stores.sources import absence_question, local_folder

LOCAL_SPACES, REMOTE_SPACES = 50, 1
"""Spaces of which one entry is listed each time, in turn: a request to a remote store may cost money."""

_REFUSALS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})
"""The errors with which a folder refuses a new file; some file systems cannot make one without a name."""


class DiskSpace(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of a folder: the number of its ``device``, its ``mount`` point, and its ``free`` and ``total`` bytes."""

    device: int
    mount: str
    free: int
    total: int


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a store. ``problem`` is why it cannot be used, ``read_only`` why nothing can be written there.

    ``empty`` are those of its ``spaces`` that list nothing, as far as they were asked. ``disk`` is the disk of a local
    store, and ``free_bytes`` what is left there for copies; None for a store that was adopted, which gets none.
    """

    problem: str = ""
    read_only: str = ""
    spaces: Sequence[str] = ()
    empty: frozenset[str] = frozenset()
    disk: DiskSpace | None = None
    free_bytes: int | None = None


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a store: its last ``answer`` and the time of it, ``answered_at``; None where there was none.

    ``asked_at`` is when it was asked that has not answered yet; ``well_at`` when it last answered without a problem.
    ``hangs`` says that the answer takes longer than allowed. All times are in microseconds.
    """

    store: str
    answer: StoreAnswer | None = None
    answered_at: int | None = None
    well_at: int | None = None
    asked_at: int | None = None
    hangs: bool = False


class StoreWatch:
    """Asks the stores of *providers*, of which *written* (by name) are written to. Thread-safe.

    A store that does not answer within *timeout* seconds hangs; it is not asked again before it has answered.
    *free_bytes* gives the free space of a folder's disk.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        clock: Clock,
        timeout: float,
        *,
        written: Callable[[], frozenset[str]] = frozenset,
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        self._providers, self._clock, self._timeout = providers, clock, timeout
        self._written, self._free_bytes = written, free_bytes or disk_free
        self._changed = threading.Condition()
        self._states = {name: StoreState(store=name) for name in providers}
        self._started: dict[str, float] = {}
        self._turns = dict[str, int]()
        self._empty = dict[str, frozenset[str]]()

    @property
    def states(self) -> Sequence[StoreState]:
        """The known state of each store, by name."""
        now = self._clock.monotonic()
        with self._changed:
            return [
                msgspec.structs.replace(
                    state, hangs=name in self._started and now - self._started[name] >= self._timeout
                )
                for name, state in sorted(self._states.items())
            ]

    def ask(self) -> Sequence[StoreState]:
        """Ask every store, and return when all have answered or the time is over."""
        deadline = self._clock.monotonic() + self._timeout
        with self._changed:
            asked = [name for name in self._states if name not in self._started]
            for name in asked:
                self._started[name] = self._clock.monotonic()
                state = self._states[name]
                self._states[name] = msgspec.structs.replace(state, asked_at=self._clock.now())
        for name in asked:
            threading.Thread(target=self._ask, args=(name,), name=f"ask-store-{name}", daemon=True).start()
        with self._changed:
            while set(asked) & set(self._started) and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._changed, left)
        return self.states

    def _ask(self, name: str) -> None:
        try:
            answer = self._look(name)
        except StoreError as error:
            answer = StoreAnswer(problem=str(error))
        except (MillstreamError, OSError) as error:
            answer = StoreAnswer(problem=f"{type(error).__name__}: {error}")
        except (
            Exception
        ) as error:  # of a client library: a thread that ends silently would look like a store that hangs
            answer = StoreAnswer(problem=f"unexpected {type(error).__name__}: {error}")
        now = self._clock.now()
        is_well = not (answer.problem or answer.read_only)
        with self._changed:
            self._states[name] = StoreState(
                store=name,
                answer=answer,
                answered_at=now,
                well_at=now if is_well else self._states[name].well_at,
            )
            del self._started[name]
            self._changed.notify_all()

    def _look(self, name: str) -> StoreAnswer:
        store = self._providers.unchecked[name]
        spaces = self._providers.call(store.spaces)
        folder = local_folder(store.url)
        chosen = self._next_spaces(name, spaces, REMOTE_SPACES if folder is None else LOCAL_SPACES)
        adopted = find_adopted_store(store)
        if adopted is not None:
            _require_items(adopted, spaces)
        now_empty = {space for space in chosen if adopted is None and not store.entries(space, limit=1)}
        empty = frozenset((self._empty.get(name, frozenset()) - set(chosen) | now_empty) & set(spaces))
        self._empty[name] = empty
        read_only = ""
        if folder is not None and not self._providers.is_read_only(name) and name in self._written():
            read_only = write_refusal(folder)
        disk = None if folder is None else disk_space(folder, self._free_bytes)
        return StoreAnswer(
            read_only=read_only,
            spaces=tuple(spaces),
            empty=empty,
            disk=disk,
            free_bytes=None if disk is None or adopted is not None else disk.free,
        )

    def _next_spaces(self, name: str, spaces: Sequence[str], most: int) -> Sequence[str]:
        """The next *most* of *spaces*, in turn."""
        begin = self._turns.get(name, 0) % max(len(spaces), 1)
        chosen = tuple(islice((*spaces[begin:], *spaces[:begin]), most))
        self._turns[name] = begin + len(chosen)
        return chosen


def disk_free(folder: Path) -> int:
    """The bytes that are free on the disk of *folder*."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def disk_space(folder: Path, free_bytes: Callable[[Path], int] = disk_free) -> DiskSpace:
    """The disk of *folder*, whose free space *free_bytes* gives. Raises :class:`OSError`."""
    stat, mount = os.statvfs(folder), folder.resolve()
    while not mount.is_mount():
        mount = mount.parent
    total = stat.f_blocks * stat.f_frsize
    return DiskSpace(device=folder.stat().st_dev, mount=str(mount), free=free_bytes(folder), total=total)


def write_refusal(folder: Path) -> str:
    """Why nothing can be written to *folder*; empty where it can. Nothing is left there."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
    except OSError as error:
        if error.errno in _REFUSALS:
            return f"{folder}: {error.strerror}"
    return ""


def problems_of(states: Sequence[StoreState]) -> Mapping[str, str]:
    """Why stores cannot be used, by store."""
    return {
        state.store: "it does not answer" if state.hangs or state.answer is None else state.answer.problem
        for state in states
        if state.hangs or state.answer is None or state.answer.problem
    }


def _require_items(adopted: AdoptedStore, spaces: Sequence[str]) -> None:
    """Raise :class:`StoreUnavailableError` where nothing is listed any more in a source in which something was."""
    for space in spaces:
        if not adopted.source.entries(space, limit=1) and adopted.entries(space, limit=1):
            question = absence_question(adopted.url)
            raise StoreUnavailableError(f"{adopted.url} is empty, but items were adopted from it before: {question}")
