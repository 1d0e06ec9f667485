"""Settings as people read them: plain values, with units where they are lengths of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from millstream.core.amounts import Duration, format_duration
from millstream.settings.sections import BatchingSettings


def readable(settings: msgspec.Struct) -> dict[str, Any]:
    """*settings*, or a section of them, as plain values; a :data:`~millstream.core.amounts.Duration` as ``46 min``."""
    kinds = get_type_hints(type(settings))
    values = {name: _plain(getattr(settings, name), kind) for name, kind in kinds.items()}
    if isinstance(settings, BatchingSettings):  # its overrides are tables of the settings beside them
        values["override"] = [
            {name: _plain(value, kinds.get(name)) for name, value in table.items()} for table in settings.override
        ]
    return values


def _plain(value: Any, kind: Any) -> Any:
    """*value* of a setting of this *kind*, as :func:`readable` has it."""
    if value is not None and Duration in (kind, *get_args(kind)):
        return ", ".join(map(format_duration, [value] if isinstance(value, int) else value))
    if isinstance(value, msgspec.Struct):
        return readable(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner, None) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, None) for inner in value]
    return msgspec.to_builtins(value)
