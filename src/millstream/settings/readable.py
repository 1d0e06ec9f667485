"""Settings as people read them: plain values, with units where they are lengths of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from millstream.core.amounts import Duration, format_duration
from millstream.core.settings import OwnTables


def readable(settings: msgspec.Struct) -> dict[str, Any]:
    """*settings*, or a section of them, as plain values; a :data:`~millstream.core.amounts.Duration` as ``46 min``."""
    kinds = get_type_hints(type(settings))
    return {name: _plain(getattr(settings, name), kind, kinds) for name, kind in kinds.items()}


def _plain(value: Any, kind: Any, kinds: Mapping[str, Any]) -> Any:
    """*value* of a setting of this *kind*, as :func:`readable` has it; *kinds* are those of the section around it."""
    if value is not None and Duration in (kind, *get_args(kind)):
        return ", ".join(map(format_duration, [value] if isinstance(value, int) else value))
    if isinstance(value, msgspec.Struct):
        return readable(value)
    if kind == OwnTables:
        return [{name: _plain(inner, kinds.get(name), kinds) for name, inner in table.items()} for table in value]
    if isinstance(value, Mapping):
        return {name: _plain(inner, None, {}) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, None, {}) for inner in value]
    return msgspec.to_builtins(value)
