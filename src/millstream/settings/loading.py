"""Settings from all places: defaults, then a TOML file, then the environment, then flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from millstream.batching.errors import ConfigError
from millstream.core.amounts import Duration, parse_duration, parse_size
from millstream.settings.sections import DEFAULT_DATA, Settings, SettingsError

FILE_NAME = "millstream.toml"
ENVIRONMENT_PREFIX = "MILLSTREAM_"


class Layer(msgspec.Struct, frozen=True):
    """Values from one place, by section, and the name of that place."""

    origin: str
    values: Mapping[str, Any]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """The settings, and for each key that is not at its default the place it came from (``log.store`` → ``flag``).

    *flags* is nested by section. Raises :class:`SettingsError` that names the bad key and its origin.
    """
    environment = os.environ if environment is None else environment
    from_environment = Layer("environment", dict(_nest(environment)))
    from_flags = Layer("flag", flags or {})
    named = (layer.values.get("data") for layer in (from_flags, from_environment))
    data = next((name for name in named if name is not None), DEFAULT_DATA)
    if not str(data).strip():
        raise SettingsError("--data is empty: name a folder")
    from_file = _read_file(config or _configured(environment), Path(data))
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in (from_file, from_environment, from_flags):
        _merge(merged, layer.values, layer.origin, "", origins)
    return _convert(merged, origins), origins


def _configured(environment: Mapping[str, str]) -> Path | None:
    name = environment.get(ENVIRONMENT_PREFIX + "CONFIG")
    return Path(name) if name else None


def _read_file(named: Path | None, data: Path) -> Layer:
    path = named or data / FILE_NAME
    if named is None and not path.exists():
        return Layer("default", {})
    try:
        return Layer(str(path), tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error


def _nest(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    sections = {field.name for field in msgspec.structs.fields(Settings)}
    nested: dict[str, Any] = {}
    for name, value in environment.items():
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if not name.startswith(ENVIRONMENT_PREFIX) or path[0] not in sections:
            continue
        target = nested
        for part in path[:-1]:
            target = target.setdefault(part, {})
        target[path[-1]] = value
    yield from nested.items()


def _merge(into: dict[str, Any], values: Mapping[str, Any], origin: str, path: str, origins: dict[str, str]) -> None:
    for key, value in values.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{where} ({origins.get(where, origin)}) must be a section, not a single value")
            _merge(inner, value, origin, where + ".", origins)
        elif value is not None:
            into[key] = value
            origins[where] = origin


def _convert(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        settings = msgspec.convert(_with_amounts(values), Settings, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        where = path.rstrip("`").lstrip(".") or "the top level"
        origin = f" ({origins[where]})" if where in origins else _from(origins, f"{where}.")
        raise SettingsError(f"setting {where}{origin}: {text[:1].lower()}{text[1:]}") from error
    try:
        settings.batching.rules  # noqa: B018  (a node that cannot batch by its settings says so at once)
    except ConfigError as error:
        raise SettingsError(f"settings of the section batching{_from(origins, 'batching.')}: {error}") from error
    return settings


def _from(origins: Mapping[str, str], section: str) -> str:
    """Where the settings of *section* that are not at their defaults come from, in brackets."""
    places = sorted({place for name, place in origins.items() if name.startswith(section)})
    return f" ({', '.join(places)})" if places else ""


def _durations(struct: type[msgspec.Struct], section: str = "") -> Iterator[tuple[str, str]]:
    """The settings under *struct*, the section of that name, that are lengths of time."""
    for name, kind in get_type_hints(struct).items():
        if Duration in (kind, *get_args(kind)):
            yield section, name
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _durations(kind, f"{section}.{name}".lstrip("."))


_DURATIONS = frozenset(_durations(Settings))

_OVERRIDE: dict[str, Callable[[Any], int]] = {key: parse_duration for part, key in _DURATIONS if part == "batching"}
_RULE: dict[str, Callable[[Any], int]] = {
    **dict.fromkeys(("max_age", "keep_age"), parse_duration),
    **dict.fromkeys(("max_bytes", "cap_bytes", "segment_bytes", "keep_bytes"), parse_size),
}
_NAMED: dict[str, dict[str, Callable[[Any], int]]] = {
    "stores": {"most_bytes": parse_size},
    "serve.ingest": {"expiry": parse_duration, "max_payload": parse_size},
    "serve.relay": {"poll": parse_duration, "bytes": parse_size},
}
"""The lengths of time and the sizes in the tables of sections that have one for each name."""


def _parse_durations(value: Any) -> Any:
    """*value*, or each of its members where it is a list, in microseconds."""
    return [parse_duration(each) for each in value] if isinstance(value, list) else parse_duration(value)


def _with_amounts(values: dict[str, Any]) -> dict[str, Any]:
    """Turn the lengths of time and the sizes in *values* into microseconds and bytes."""
    for section, key in _DURATIONS:
        _parse_members(_inner(values, section), {key: _parse_durations}, section)
    for section, parsers in (("batching.override", _OVERRIDE), ("log.rules", _RULE)):
        tables = _inner(values, section)
        for number, table in enumerate(tables if isinstance(tables, list) else (), start=1):
            _parse_members(table, parsers, f"{section} {number}", ", ")
    for section, parsers in _NAMED.items():
        named = _inner(values, section)
        for name, table in named.items() if isinstance(named, dict) else ():
            _parse_members(table, parsers, f"{section}.{name}")
    return values


def _inner(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _parse_members(values: Any, parsers: Mapping[str, Callable[[Any], int]], where: str, then: str = ".") -> None:
    for key in parsers.keys() & values.keys() if isinstance(values, dict) else ():
        try:
            values[key] = parsers[key](values[key])
        except ValueError as error:
            raise SettingsError(f"setting {where}{then}{key}: {error}") from error
