"""Settings without their secrets, and the secrets by themselves: by the types of the settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

import msgspec

from millstream.core.secrets import (
    HIDDEN,
    Secret,
    SecretCommand,
    SecretUrl,
    is_secret_name,
    password_in,
    public_url,
    safe_url,
)
from millstream.core.settings import OwnTables

SectionT = TypeVar("SectionT", bound=msgspec.Struct)
_Change = Callable[[str, Any], str]
"""Makes another text of a text and its type."""


def redacted(settings: SectionT) -> SectionT:
    """*settings*, or a section of them, as people may be shown them: secrets, and passwords and tokens in URLs, are
    replaced by three stars."""
    return _changed(settings, _hidden)


def secret_values(settings: msgspec.Struct) -> frozenset[str]:
    """The secrets in *settings*: what no log line may have."""
    found = set[str]()

    def look(text: str, kind: Any) -> str:
        found.update(_secrets_in(text, kind))
        return text

    _changed(settings, look)
    return frozenset(found)


def _hidden(text: str, kind: Any) -> str:
    if kind is Secret:
        return HIDDEN if text else ""
    if kind is SecretUrl:
        return public_url(SecretUrl(text)) if text else ""
    return safe_url(text)


def _secrets_in(text: str, kind: Any) -> Iterator[str]:
    if kind is Secret:
        yield text
    elif kind is SecretUrl:  # what public_url() hides; libraries and servers name it without the host
        yield text.partition("://")[2].partition("/")[2]
    elif "://" in text:
        passwords = {password_in(text) or ""}  # with / ? or #, which the next one does not find
        with contextlib.suppress(ValueError):
            passwords.add(urlsplit(text).password or "")
        yield from passwords | set(map(unquote, passwords))


def _changed(section: SectionT, change: _Change) -> SectionT:
    kinds = get_type_hints(type(section))
    return msgspec.structs.replace(
        section, **{name: _member(getattr(section, name), kind, kinds, change) for name, kind in kinds.items()}
    )


def _member(value: Any, kind: Any, kinds: Mapping[str, Any], change: _Change) -> Any:
    """*value*, which is of *kind*, with its texts changed; *kinds* are those of the section around it."""
    if isinstance(value, msgspec.Struct):
        return _changed(value, change)
    if isinstance(value, str):
        return change(value, kind)
    if isinstance(value, Mapping):
        inner = get_args(kind)[1] if get_origin(kind) is Mapping else None
        return {n: _member(one, _kind_of(n, one, inner), kinds, change) for n, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_elements(value, kind, kinds, change))
    return value


def _elements(values: Sequence[Any], kind: Any, kinds: Mapping[str, Any], change: _Change) -> Iterator[Any]:
    """The elements of *values*, each as :func:`_member` makes it."""
    if kind is SecretCommand:
        yield from values[:1]
        yield from (change(argument, Secret) for argument in values[1:])
    elif kind == OwnTables:
        for table in values:
            yield {name: _member(one, kinds.get(name), kinds, change) for name, one in table.items()}
    else:
        inner = next(iter(get_args(kind)), None)
        yield from (_member(one, inner, kinds, change) for one in values)


def _kind_of(name: str, value: Any, kind: Any) -> Any:
    """The *kind* of a member of a table whose names are not ours; a secret where its *name* says so."""
    return Secret if isinstance(value, str) and is_secret_name(name) else kind
