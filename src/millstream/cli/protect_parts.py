"""Parts of the commands around ``millstream protect``, made from a node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from millstream.cli.queue_draining import drain_queues
from millstream.core.documents import Document, DocumentBusyError, FileDocument
from millstream.core.errors import BusyError
from millstream.core.private_files import make_private_folder
from millstream.mill.adoption.adopted_store import adopted_store, find_adopted_store
from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.checksum_files import ChecksumList, read_checksums
from millstream.mill.adoption.protection import ProtectionParts
from millstream.mill.adoption.verification import CopyChecker, CopyVerifier
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.stores.folder import encode_path
from millstream.stores.sources import local_folder

checksums_option = click.option(
    "--checksums",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Compare with the checksums in FILE, as sha256sum, md5deep or rclone hashsum write it.",
)
"""The option of commands that adopt content: a list of known checksums."""


def read_list(path: Path, source: str) -> ChecksumList:
    """The list of checksums in the file *path*, which names items of the folder or bucket at the URL *source*."""
    return read_checksums(path, root=local_folder(source), content_id=encode_path)


_PROTECT = "protect"
"""The document that a run holds."""


class ProtectBusyError(BusyError):
    """Another `millstream protect`, or a command that changes what it records, runs on this node."""


@contextlib.contextmanager
def alone(node: Node) -> Iterator[None]:
    """Keep other runs on *node* off while the block runs. Raises :class:`ProtectBusyError` where there is one."""
    with _alone(node.databases.documents.document(_PROTECT), node.folder):
        yield


@contextlib.contextmanager
def alone_in_folder(folder: Path) -> Iterator[None]:
    """:func:`alone` before the node in *folder* is set up: keeps off other runs on this host."""
    make_private_folder(folder)
    with _alone(FileDocument(folder / _PROTECT), folder):
        yield


@contextlib.contextmanager
def _alone(document: Document, folder: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(document.alone())
        except DocumentBusyError:
            raise ProtectBusyError(
                "another `millstream protect`, or `mill accept` or `mill forget` for a protected source, is running on "
                f"the node in {folder}: wait until it ends"
            ) from None
        yield


@contextlib.contextmanager
def alone_on_adopted(node: Node, store: str) -> Iterator[None]:
    """:func:`alone` where *store* is a source that is protected: a run would undo what the block records of it."""
    with alone(node) if find_adopted_store(node.stores.providers[store]) is not None else contextlib.nullcontext():
        yield


def adoption_target(node: Node, store: str) -> AdoptionTarget:
    """The source *store* of the settings, and the catalog of its adopted content."""
    adopted = adopted_store(node.stores.providers[store])
    return AdoptionTarget(adopted.source, store, adopted.catalog, node.stores.manifest, node.clock)


def protection_parts(node: Node, store: str) -> ProtectionParts:
    """The protection of the source *store* of the settings."""
    target = adoption_target(node, store)
    return ProtectionParts(
        target,
        node.stores.providers,
        node.stores.change_guard,
        node.queues.open(QueueName.DUPLICATION_LOW),
        lambda: drain_queues(node, QueueName.DUPLICATION_HIGH, QueueName.DUPLICATION_LOW),
        CopyVerifier(
            target,
            node.stores.providers,
            CopyChecker(target, node.mill.checks.checker),
            node.mill.checks.writer,
            node.mill.repairs.repairer,
        ),
        node.mill.reports.reporter,
        node.stores.outbox,
        node.mill.direct(),
    )
