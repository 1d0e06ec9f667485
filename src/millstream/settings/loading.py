"""Settings from all places: defaults, then a TOML file, then the environment, then flags."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from millstream.batching.errors import ConfigError
from millstream.core.amounts import Duration, Size, parse_duration, parse_size
from millstream.core.decoding import prepared
from millstream.core.plain_reasons import hints, is_struct, kind_at, plain_reason
from millstream.core.settings import OwnTables, SettingsError
from millstream.settings.node_settings import DEFAULT_DATA, Settings

FILE_NAME = "millstream.toml"
ENVIRONMENT_PREFIX = "MILLSTREAM_"

_RENAMED = {"mill": {"brake": "change_guard"}}
"""Settings by section that settings files of earlier versions have under another name."""


class _AmountError(ValueError):
    """The setting *where* is no length of time, or no size."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(reason)
        self.where = where


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
        raise SettingsError("the setting data (--data, MILLSTREAM_DATA) is empty: name a folder")
    from_file = _read_file(config or _configured(environment), Path(data).expanduser())
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in (from_file, from_environment, from_flags):
        _merge(merged, _with_new_names(layer), layer.origin, "", origins)
    return _convert(merged, origins), origins


def settings_file(folder: Path, *, config: Path | None = None) -> Path:
    """The file that :func:`load_settings` reads for the node in *folder*; it need not exist."""
    return config or _configured(os.environ) or folder / FILE_NAME


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
        raise SettingsError(f"cannot read settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path} is not valid TOML: {error}") from error


def _nest(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    sections = {field.name for field in msgspec.structs.fields(Settings)}
    nested: dict[str, Any] = {}
    for name, value in sorted(environment.items(), reverse=True):  # a section's own value is found to be wrong later
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if not name.startswith(ENVIRONMENT_PREFIX) or path[0] not in sections:
            continue
        target = nested
        for part in path[:-1]:
            target = target.setdefault(part, {})
        target[path[-1]] = value
    yield from nested.items()


def _with_new_names(layer: Layer) -> Mapping[str, Any]:
    values = dict(layer.values)
    for section, names in _RENAMED.items():
        if not isinstance(values.get(section), Mapping):
            continue
        values[section] = dict(values[section])
        for old, new in names.items():
            if old not in values[section]:
                continue
            if new in values[section]:
                raise SettingsError(
                    f"setting {section}.{old} ({layer.origin}) is now {section}.{new}, which is set too: remove "
                    f"{section}.{old}"
                )
            values[section][new] = values[section].pop(old)
    return values


def _merge(into: dict[str, Any], values: Mapping[str, Any], origin: str, path: str, origins: dict[str, str]) -> None:
    for key, value in values.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"setting {where} ({origins[where]}) must be a table, not a single value")
            _merge(inner, value, origin, where + ".", origins)
        elif value is not None:
            into[key] = value
            origins[where] = origin


def _convert(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        _parse_members(values, Settings, "")
        settings = msgspec.convert(values, prepared(Settings), strict=False)
    except _AmountError as error:
        raise _refusal(error.where, str(error), origins) from error
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        kind = kind_at(path, Settings)
        where = _named(path.rstrip("`").lstrip("."), values)
        if unknown := _UNKNOWN.fullmatch(text):
            raise _unknown(where, unknown[1], kind, origins) from error
        if missing := _MISSING.fullmatch(text):
            raise SettingsError(f"missing setting {where}.{missing[1]}{_origin(where, origins)}") from error
        raise _refusal(where or "the top level", plain_reason(text, kind, "a table"), origins) from error
    try:
        settings.batching.rules  # noqa: B018  (a node that cannot batch by its settings says so at once)
    except ConfigError as error:
        raise SettingsError(f"settings in section batching{_from(origins, 'batching.')}: {error}") from error
    return settings


def _refusal(where: str, text: str, origins: Mapping[str, str]) -> SettingsError:
    return SettingsError(f"setting {where}{_origin(where, origins)}: {text}")


def _origin(where: str, origins: Mapping[str, str]) -> str:
    """Where the setting *where* comes from, in brackets; for an item of a list, where the list comes from."""
    name = where.partition("[")[0]
    return f" ({origins[name]})" if name in origins else _from(origins, f"{where}.")


def _unknown(where: str, name: str, kind: Any, origins: Mapping[str, str]) -> SettingsError:
    """The error of the setting *name* of the section *where*, of type *kind*, which has no such setting."""
    setting = f"{where}.{name}" if where else name
    allowed = f"; allowed: {', '.join(sorted(kind.__struct_fields__))}" if is_struct(kind) else ""
    return SettingsError(f"unknown setting {setting}{_origin(setting, origins)}{allowed}")


def _named(where: str, values: Any) -> str:
    """*where* with the name of the table that cannot be used in place of ``[...]``, by which msgspec means any."""
    before, mark, after = where.partition("[...]")
    if not mark:
        return where
    kind: Any = Settings
    for name in before.split("."):
        kind, values = hints(kind)[name], values[name]
    for name, table in values.items():
        try:
            msgspec.convert({name: table}, prepared(kind), strict=False)
        except msgspec.ValidationError:
            return f"{before}.{name}{after}"
    return where


def _from(origins: Mapping[str, str], section: str) -> str:
    """Where the settings of *section* that are not at their defaults come from, in brackets."""
    places = sorted({place for name, place in origins.items() if name.startswith(section)})
    return f" ({', '.join(places)})" if places else ""


_UNKNOWN = re.compile("Object contains unknown field `(.*)`")
_MISSING = re.compile("Object missing required field `(.*)`")
_AMOUNTS: Sequence[tuple[object, Callable[[Any], int]]] = ((Duration, parse_duration), (Size, parse_size))


def table_kind(kind: Any) -> type[msgspec.Struct] | None:
    """The struct of which a setting of this *kind* has one for each name, or any number; None where it has none."""
    structs = [each for each in get_args(kind) if is_struct(each)]
    return structs[0] if structs and get_origin(kind) in (Mapping, Sequence, tuple) else None


def _parse_members(values: Any, section: type[msgspec.Struct], prefix: str) -> None:
    """Turn the lengths of time and the sizes among *values* of *section* into microseconds and bytes."""
    kinds = hints(section)
    for key in kinds.keys() & values.keys() if isinstance(values, dict) else ():
        values[key] = _parse(values[key], kinds[key], section, prefix + key)


def _parse(value: Any, kind: Any, section: type[msgspec.Struct], where: str) -> Any:
    for amount, parse in _AMOUNTS:
        if amount in (kind, *get_args(kind)):
            try:
                several = isinstance(value, list) and get_origin(kind) is tuple
                return [parse(each) for each in value] if several else parse(value)
            except ValueError as error:
                raise _AmountError(where, str(error)) from error
    table = section if kind == OwnTables else table_kind(kind)
    if is_struct(kind):
        _parse_members(value, kind, f"{where}.")
    elif table is not None and isinstance(value, dict):
        for name, inner in value.items():
            _parse_members(inner, table, f"{where}.{name}.")
    elif table is not None and isinstance(value, list):
        for number, inner in enumerate(value, start=1):
            _parse_members(inner, table, f"{where} {number}, ")
    return value
