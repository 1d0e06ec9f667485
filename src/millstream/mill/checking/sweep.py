"""The integrity sweep of one space without Spark: list, compare with the manifest, read every byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from millstream.mill.checking.bitcheck import Verdict
from millstream.mill.checking.check_writer import CheckWriter
from millstream.mill.checking.checker import Checked, Checker
from millstream.mill.joining import groups, outer_join
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.place import Place
from millstream.mill.providers import Providers
from millstream.mill.reports.report import SpaceTally
from millstream.stores.protocol import Entry, StoreError

GROUP = 1000
"""Items checked, and written to the manifest, together."""

_TOGETHER = 100
"""Items that one thread looks at and reads together."""

OnChecked = Callable[[Sequence[Checked]], None]
"""Called with each group of finished checks, for progress, reports and follow-up tasks."""


def check_space(
    providers: Providers,
    manifest: Manifest,
    store: str,
    space: str,
    *,
    threads: int = 4,
    on_checked: OnChecked | None = None,
    checker: Checker | None = None,
    writer: CheckWriter | None = None,
) -> SpaceTally:
    """Check every item that the store lists or the manifest knows, and write the outcomes down.

    *checker* and *writer* are by default such as know only the manifest. Returns the tally, complete only if the
    listing went through to its end. Raises :class:`UnknownStoreError`.
    """
    checker, tally = checker or Checker(providers, manifest), SpaceTally()
    writer = writer or CheckWriter(manifest)
    with ThreadPoolExecutor(threads, thread_name_prefix="mill-check") as pool:
        try:
            for group in groups(items_to_check(providers, manifest, store, space), GROUP):
                checked = _check_group(pool, checker, store, space, group)
                results = [one.result for one in checked]
                writer.write(results)
                tally.add(results)
                if on_checked is not None:
                    on_checked(checked)
        except StoreError as error:
            tally.fail(f"the listing broke off: {error}")
    return tally


def _check_group(
    pool: ThreadPoolExecutor, checker: Checker, store: str, space: str, group: Sequence[tuple[str, ManifestRow | None]]
) -> list[Checked]:
    """Check the items of *group*: those that can be are looked at and read many at a time, the others one by one."""
    names = [name for name, _ in group]
    parts = pool.map(lambda part: checker.observe_many(store, space, part), list(groups(names, _TOGETHER)))
    audit = checker.audit_sums(store, space, names)
    seen = dict(zip(names, chain.from_iterable(parts), strict=True))

    def check(item: tuple[str, ManifestRow | None]) -> Checked:
        name, row = item
        return checker.sweep(Place(store, space, name), row, audit[name], seen=seen[name])

    alone = pool.map(check, [item for item in group if seen[item[0]] is None])
    return [check(item) if seen[item[0]] is not None else next(alone) for item in group]


def items_to_check(
    providers: Providers, manifest: Manifest, store: str, space: str, *, after: str = ""
) -> Iterator[tuple[str, ManifestRow | None]]:
    """What there is to check above *after*: all that is listed, and all that the manifest says should be."""
    for content_id, _, row in listed_or_known(providers, manifest, store, space, after=after):
        yield content_id, row


def listed_or_known(
    providers: Providers, manifest: Manifest, store: str, space: str, *, after: str = ""
) -> Iterator[tuple[str, Entry | None, ManifestRow | None]]:
    """All that is listed above *after*, and all that the manifest says should be, with what each says of it."""
    listed, known = providers.entries(store, space, after=after), manifest.scan(store, space, after=after)
    for content_id, entry, row in outer_join(listed, known):
        if entry is not None or (row is not None and not row.deleted):
            yield content_id, entry, row


def is_lately_verified(entry: Entry | None, row: ManifestRow | None, since: int, until: int) -> bool:
    """Whether the last check of a listed item found its bytes good between *since* and *until* (microseconds).

    Nothing that the listing shows may speak against them: they have the size that is recorded, and were not changed
    after the check. A check that is dated later than *until*, the present, is of a clock that was wrong.
    """
    if entry is None or row is None or row.deleted or row.outcome != Verdict.SUCCESS or row.verified_at is None:
        return False
    unchanged = entry.modified is None or entry.modified <= row.verified_at
    dated = since <= row.verified_at <= until and row.verified_at == row.checked_at
    return dated and entry.size == row.size and unchanged
