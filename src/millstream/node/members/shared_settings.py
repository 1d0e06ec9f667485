"""The settings that all members of a node must share, as short checksums which members compare."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from millstream.core.settings import Section
from millstream.settings import Settings, SettingsError


def shared_settings(settings: Settings) -> Mapping[str, str]:
    """A checksum (hex) for each part of *settings* that must be the same on all members, by the name of the part.

    Of URLs only the database, or the bucket and its prefix, count: hosts may reach a server under different addresses,
    mount a folder at different paths, and have different credentials. Of the
    :attr:`~millstream.core.settings.Section.host_settings` of a section it only counts whether they are set.
    """
    parts: Mapping[str, object] = {
        "anchoring": _values(settings.anchoring, but="cas"),
        "anchoring.cas": _location(settings.anchoring.cas),
        "batching": settings.batching,
        "log.rules": settings.log.rules,
        "log.store": _location(settings.log.store),
        "mill": (settings.mill.account, _policies(settings), settings.mill.audit_log),
        "queue.broker": _broker(settings.queue.broker),
        "queue.database": _location(settings.queue.database),
        "registry": _values(settings.registry, but="database"),
        "registry.database": _location(settings.registry.database),
        "stores": sorted((name, _location(one.url), one.audited) for name, one in settings.stores.items()),
    }
    return {name: _checksum(part) for name, part in parts.items()}


def has_log_queues(shared: Mapping[str, str]) -> bool:
    """Whether the member of the checksums *shared* has its work queues in logs."""
    return shared.get("queue.broker") == _checksum(_broker(""))


def _checksum(part: object) -> str:
    return hashlib.sha256(msgspec.json.encode(part, order="deterministic")).hexdigest()[:16]


def _policies(settings: Settings) -> object:
    """Where the policies lie; the setting as it is where it names no store of this member, which is a difference."""
    try:
        return settings.policy_space
    except SettingsError:
        return settings.mill.policies


def _values(section: Section, but: str = "") -> object:
    """The settings of *section* that count, by name, without the one called *but*."""
    values = {name: getattr(section, name) for name in section.__struct_fields__ if name != but}
    return {
        name: bool(value) if name in section.host_settings else _values(value) if isinstance(value, Section) else value
        for name, value in values.items()
    }


def _broker(url: str) -> tuple[str, str]:
    """The kind of the broker at *url*, and its virtual host; both empty where queues are in logs."""
    parts = urlsplit(url)
    return parts.scheme, parts.path.strip("/")


def _location(url: str) -> str:
    """What *url* names on its server: the same for all hosts. Empty for a path on this host."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return f"{parts.netloc}{parts.path}".rstrip("/")
    return parts.path.strip("/") if parts.scheme in ("mysql", "mariadb", "postgresql") else ""
