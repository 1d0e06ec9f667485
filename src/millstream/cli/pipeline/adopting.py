"""``millstream pipeline inventory --adopt``: compute checksums of content of other programs on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from millstream.cli.common import print_json
from millstream.cli.protect_parts import adoption_target, alone, read_list
from millstream.core.amounts import counted, size_text
from millstream.mill.adoption.adopted_store import find_adopted_store
from millstream.mill.adoption.adopter import Adopter, ReadExtent
from millstream.mill.adoption.adoption_run import AdoptionSummary
from millstream.mill.errors import UnknownSpaceError
from millstream.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AdoptedOnSpark(msgspec.Struct, frozen=True):
    """The result of the adoption of a space of a source."""

    store: str
    space: str
    adoption: AdoptionSummary


def adopt_on_spark(
    node: Node, spark: SparkSession, spaces: Sequence[str], *, read_all: bool = False, checksums: Path | None = None
) -> list[AdoptedOnSpark]:
    """Adopt *spaces* (all, where none is named) of every store of *node* that other programs write.

    With *read_all* every item is read again. *checksums* is a list that people have of the one space that is adopted.
    Raises :class:`click.UsageError` where that is more than one, and
    :class:`~millstream.mill.errors.UnknownSpaceError` where there is none.
    """
    from millstream.pipeline.jobs.adoption import SparkReader

    sources = list(_sources(node, spaces))
    if not sources:
        raise UnknownSpaceError(
            f"{_missing_text(spaces)} a store with the URL folder:///PATH?space=NAME or s3://BUCKET/PREFIX?space=NAME "
            "to the settings"
        )
    if checksums is not None and len(sources) > 1:
        raise click.UsageError("--checksums applies to a single space: name it with --space")
    urls, reading = node.settings.store_urls, ReadExtent.ALL if read_all else ReadExtent.SHARE
    listed = None if checksums is None else read_list(checksums, urls[sources[0][0]])
    adopted = []
    with alone(node):
        for store, space in sources:
            adopter = Adopter(adoption_target(node, store), reader=SparkReader(spark, urls[store]))
            found = adopter.adopt(space, reading=reading, checksums=listed)
            adopted.append(AdoptedOnSpark(store, space, found))
    return adopted


def _missing_text(spaces: Sequence[str]) -> str:
    if not spaces:
        return "no configured store is one that other programs write: add"
    names, check = " or ".join(map(repr, spaces)), "check the name" if len(spaces) == 1 else "check the names"
    return f"space {names} is in none of the configured stores that other programs write: {check}, or add"


def _sources(node: Node, spaces: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, store in node.stores.providers.items():
        adopted = find_adopted_store(store)
        if adopted is not None:
            yield from ((name, space) for space in adopted.spaces() if not spaces or space in spaces)


def print_adopted(found: Sequence[AdoptedOnSpark], *, as_json: bool) -> None:
    """One line a space."""
    for one in found:
        if as_json:
            print_json(one)
            continue
        summary = one.adoption
        click.echo(
            f"{one.store}/{one.space}: {counted(summary.listed, 'item')}, {summary.added:,} new, "
            f"{summary.changed:,} changed, "
            f"{summary.vanished:,} vanished; {size_text(summary.read_bytes)} read; "
            f"{counted(summary.findings, 'finding')} (see "
            "`millstream protect`)"
        )
