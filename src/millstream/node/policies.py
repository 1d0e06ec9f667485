"""The duplication policies of a node."""

from __future__ import annotations

from millstream.core.cached import locked_cached_property
from millstream.mill.policies.locations import FolderLocation, PolicyLocation, SpaceLocation
from millstream.mill.policies.repository import Policies, PolicyRepository
from millstream.node.context import NodeContext
from millstream.node.stores import StoresPart


class PoliciesPart:
    """The duplication policies, and where they lie."""

    def __init__(self, context: NodeContext, stores: StoresPart) -> None:
        self._context = context
        self._stores = stores

    @property
    def location(self) -> PolicyLocation:
        """The location of the duplication policies."""
        settings = self._context.settings
        if settings.policy_space is None:
            return FolderLocation(settings.policy_folder)
        store, space = settings.policy_space
        return SpaceLocation(self._stores.providers[store], space, self._context.clock)

    @locked_cached_property
    def current(self) -> Policies:
        """The duplication policies, as they were read last."""
        return PolicyRepository(self.location).load()

    def reload(self) -> None:
        """Read the policies again at the next request: one was saved."""
        self.__dict__.pop("current", None)
