"""The integrity sweep of one space without Spark: list, compare with the manifest, read every byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from millstream.mill.check_writer import CheckWriter
from millstream.mill.checker import Checked, Checker
from millstream.mill.joining import groups, outer_join
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.place import Place
from millstream.mill.providers import Providers
from millstream.mill.report import SpaceTally
from millstream.stores.protocol import StoreError

GROUP = 1000
"""Items checked, and written to the manifest, together."""

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
                audit = checker.audit_sums(store, space, [name for name, _ in group])

                def check(item: tuple[str, ManifestRow | None], audit: Mapping[str, str | None] = audit) -> Checked:
                    return checker.sweep(Place(store, space, item[0]), item[1], audit[item[0]])

                checked = list(pool.map(check, group))
                results = [one.result for one in checked]
                writer.write(results)
                tally.add(results)
                if on_checked is not None:
                    on_checked(checked)
        except StoreError as error:
            tally.fail(f"the listing broke off: {error}")
    return tally


def items_to_check(
    providers: Providers, manifest: Manifest, store: str, space: str, *, after: str = ""
) -> Iterator[tuple[str, ManifestRow | None]]:
    """What there is to check above *after*: all that is listed, and all that the manifest says should be."""
    listed, known = providers.entries(store, space, after=after), manifest.scan(store, space, after=after)
    for content_id, entry, row in outer_join(listed, known):
        if entry is not None or (row is not None and not row.deleted):
            yield content_id, row
