"""The common base of all sections of the settings; a section stands in the package that it configures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError

OwnTables: TypeAlias = Sequence[Mapping[str, Any]]
"""Tables whose members are settings of the section in which they stand, with other values."""


class SettingsError(InputError):
    """A setting cannot be used as it is."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the settings, a field for each setting; its docstring is the reference of these settings."""

    host_settings = frozenset[str]()  # without an annotation it is no field
    """The settings that may differ between the hosts of a node, such as paths and sizes of pools."""


def require_time(section: msgspec.Struct, *names: str) -> None:
    """Raise ValueError where one of the lengths of time *names* of *section* is 0."""
    for name in names:
        if not getattr(section, name):
            raise ValueError(f"{name} must be longer than 0: give a duration, such as 1s")  # the loader says where


def seconds(duration: Duration) -> float:
    """*duration* in seconds."""
    return duration / MICROSECONDS
