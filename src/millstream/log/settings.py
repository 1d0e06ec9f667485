"""The section ``log`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.decoding import prepared
from millstream.core.plain_reasons import field_reason
from millstream.core.settings import Section, SettingsError
from millstream.log.upkeep.rules import LogRule


class NerveSettings(Section, frozen=True):
    """The queue NAME in the nerve layout (docs/formats/nerve-layout.md), and the account for its databases.

    Each table ``hosts."HOST"`` has ``dbname`` (required), ``port`` (3306), ``table_parallelism`` (4),
    ``pointers_parallelism`` (1) and ``max_rps_per_thread`` (0: unlimited).
    """

    hosts: Mapping[str, Mapping[str, int | str]]
    user: str = "root"
    password_file: str = ""


class LogSettings(Section, frozen=True):
    """The message logs. ``store`` is the URL of the log store; empty means ``log.db`` in the data folder.

    ``nerve:NAME@HOST`` is the queue NAME of ``nerve`` on one of its hosts. The first of ``rules`` whose ``log`` matches
    the name of a log is stored with that log. `millstream serve` tiers and trims logs by their stored rules, at the
    interval ``upkeep`` (0: never). In a bucket, each commit is a request that is paid for: a writer there collects
    messages for ``bucket_linger`` before it commits less than a block (1 MiB), and merges its commits into larger
    objects after ``bucket_commits`` of them (0: never). Readers in other processes poll at
    that interval, or at five times that interval while no messages arrive; they store their acknowledgements after ten
    intervals.
    """

    store: str = ""
    nerve: Mapping[str, NerveSettings] = msgspec.field(default_factory=dict)
    rules: tuple[LogRule, ...] = ()
    upkeep: Duration = Duration(60 * MICROSECONDS)
    bucket_linger: Duration = Duration(MICROSECONDS // 10)
    bucket_commits: int = 500


def nerve_url(log: LogSettings) -> str:
    """The URL of the queue that ``log.store`` names. Raises :class:`SettingsError`."""
    from millstream.log.backends.nerve.queue import NerveQueue

    name, _, host = log.store.removeprefix("nerve:").partition("@")
    found = log.nerve.get(name)
    if found is None:
        raise SettingsError(
            f"setting log.store: unknown nerve queue {name!r}; describe the queue in a section [log.nerve.{name}]"
        )
    try:
        queue = msgspec.convert({"name": name, **msgspec.structs.asdict(found)}, prepared(NerveQueue), strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"setting log.nerve.{name}: {field_reason(error, NerveQueue)}") from error
    return queue.url(host or next(iter(queue.hosts), ""))
