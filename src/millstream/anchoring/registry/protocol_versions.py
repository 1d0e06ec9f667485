"""Protocol versions: which rules hold from when on. The time of a ledger entry decides for all readers alike."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.anchoring.registry.errors import RegistryError
from millstream.anchoring.sidetree import SIDETREE, Profile


class ProtocolVersion(msgspec.Struct, frozen=True):
    """The rules *profile* under a *name*, from the time *since* on (microseconds)."""

    name: str
    profile: Profile
    since: int = 0


class ProtocolVersions:
    """All versions of a network, oldest first."""

    def __init__(self, versions: Sequence[ProtocolVersion] = (ProtocolVersion("1.1", SIDETREE),)) -> None:
        if not versions or list(versions) != sorted(versions, key=lambda version: version.since):
            raise RegistryError(
                "the protocol versions must contain at least one version, and be in the order of their start times"
            )
        self._versions = versions

    def at(self, time: int) -> ProtocolVersion:
        """The version that holds at *time*; before the first one starts, that one."""
        for version in reversed(self._versions):
            if version.since <= time:
                return version
        return self._versions[0]

    def named(self, name: str) -> ProtocolVersion:
        """The version *name*."""
        found = next((version for version in self._versions if version.name == name), None)
        if found is None:
            names = ", ".join(version.name for version in self._versions)
            raise RegistryError(
                f"the protocol version {name!r}, which stored operations need, is not configured: add it to the "
                f"versions of the registry, which are {names}"
            )
        return found

    @property
    def latest(self) -> ProtocolVersion:
        """The newest version, begun or not; what all versions share, such as the DID method, is in it."""
        return self._versions[-1]


def network_versions(profile: Profile) -> ProtocolVersions:
    """The versions of a network that has had the rules *profile* from its beginning.

    ``1.0`` is the name under which earlier releases accepted operations: what is still under way is checked again.
    """
    return ProtocolVersions([ProtocolVersion("1.0", profile), ProtocolVersion("1.1", profile)])
