"""The duplication policies of a node."""

from __future__ import annotations

from millstream.core.cached import locked_cached_property
from millstream.mill.errors import PoliciesUnavailableError
from millstream.mill.policies.locations import FolderLocation, PolicyLocation, SpaceLocation
from millstream.mill.policies.repository import CachedPolicies, Policies, PolicyRepository
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

    @property
    def current(self) -> Policies:
        """The duplication policies, as they were a second ago or later: other processes may save some at any time."""
        return self._latest()

    def require(self) -> Policies:
        """:attr:`current`, for what must not be done without them.

        Raises :class:`PoliciesUnavailableError` where the setting ``mill.policies`` names a place that has none: its
        disk may not be mounted. Without the setting there may be no policies.
        """
        return self.required(self.current)

    def required(self, policies: Policies) -> Policies:
        """*policies*, with the error of :meth:`require`."""
        if not policies.found and self._context.settings.mill.policies:
            raise PoliciesUnavailableError(
                f"{policies.missing}: mount the disk with the policies, or save a policy with `millstream mill policy "
                "save`"
            )
        return policies

    @locked_cached_property
    def _latest(self) -> CachedPolicies:
        return CachedPolicies(PolicyRepository(self.location), self._context.clock, seconds=1.0)
