"""The trees of a node's ledgers: where they are kept, what signs them, and where they are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from millstream.anchoring import LogLedger
from millstream.anchoring.errors import RESTORE_DATABASE, LedgerError, NoteError
from millstream.anchoring.settings import TILES_FOLDER
from millstream.core.clock import Clock
from millstream.node.context import NodeContext
from millstream.settings import Settings

if TYPE_CHECKING:
    import sqlalchemy as sa

    from millstream.anchoring.transparency import LedgerTree, TreePlaces
    from millstream.anchoring.transparency.keys import LedgerKeys, LedgerSigner

LedgerName = Literal["anchors", "reports", "registry"]
"""The name of a ledger in commands, settings and file names."""

LEDGERS: Sequence[LedgerName] = ("anchors", "reports", "registry")


class LedgerTreesPart:
    """Gives each ledger that is opened its tree, which follows it."""

    def __init__(self, context: NodeContext, database: Callable[[], sa.Engine]) -> None:
        self._context = context
        self._database = database
        self._trees: dict[LedgerName, LedgerTree] = {}

    def attach(self, name: LedgerName, ledger: LogLedger) -> LogLedger:
        """Let the tree of the ledger *name* follow *ledger*, which is returned."""
        from millstream.anchoring.transparency import LedgerTree

        tree = LedgerTree(
            ledger,
            self._database,
            name,
            signer=partial(self._signer, name),
            places=partial(self.places, name),
        )
        tree.follow()
        self._trees[name] = tree
        return ledger

    @property
    def engine(self) -> sa.Engine:
        """The database of the trees."""
        return self._database()

    def tree(self, name: LedgerName) -> LedgerTree:
        """The tree of the ledger *name*, which was attached."""
        return self._trees[name]

    def _signer(self, name: LedgerName) -> LedgerSigner:
        """The signer of the ledger *name*, with the origin of earlier signatures, if there are any."""
        from millstream.anchoring.transparency.checkpoint import parse_checkpoint
        from millstream.anchoring.transparency.keys import LedgerSigner
        from millstream.anchoring.transparency.signed_note import parse_note

        newest = self._trees[name].newest()
        try:
            origin = parse_checkpoint(parse_note(newest.data)).origin if newest else None
        except NoteError as error:
            raise LedgerError(
                f"the newest checkpoint of the ledger {name} in the node's database is damaged: {error}. "
                f"{RESTORE_DATABASE}"
            ) from error
        return LedgerSigner(ledger_keys(self._context.settings, name, self._context.clock), origin)

    def places(self, name: LedgerName) -> TreePlaces:
        """The locations in the settings for copies of the newest checkpoint of the ledger *name*, and for its tiles.

        Raises :class:`~millstream.stores.StoreInputError` for a URL that cannot be used.
        """
        from millstream.anchoring.transparency import FolderFiles, TreePlaces, open_files

        settings = self._context.settings.anchoring
        copy = open_files(settings.checkpoint_copy, name) if settings.checkpoint_copy else None
        if isinstance(settings.tiles, str):
            return TreePlaces(copy=copy, tiles=open_files(settings.tiles, name) if settings.tiles else None)
        own = FolderFiles(self._context.folder / TILES_FOLDER, name, create=True)
        return TreePlaces(copy=copy, tiles=own if settings.tiles else None)


def ledger_keys(settings: Settings, name: LedgerName, clock: Clock) -> LedgerKeys:
    """The keys of the ledger *name* of the node of *settings*; nothing else of the node is opened."""
    from millstream.anchoring.transparency.keys import LedgerKeys

    folder = settings.anchoring.key_folder
    return LedgerKeys(Path(folder) if folder else settings.folder / "keys", name, clock)
