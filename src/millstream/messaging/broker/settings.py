"""Who may reach a broker, as people write it: the section ``broker`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class KeySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An access key and what its holder may do. Its secret is the content of ``secret_file``.

    ``publish`` and ``subscribe`` are names of topics and ``groups`` names of consumer groups; ``*`` in a name stands
    for any text, namespaces included (``space%topic``). With ``token_file`` calls have to carry that session token as
    well. ``admin`` may make and drop topics, and send groups elsewhere.
    """

    secret_file: str
    token_file: str = ""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    groups: tuple[str, ...] = ("*",)
    admin: bool = False


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The broker of `millstream serve`. With ``keys``, by access key, every call has to be signed with one of them.

    With ``tls_certificate`` and ``tls_key`` (PEM files) connections are encrypted; with ``tls_client_ca`` clients need
    a certificate of that authority.
    """

    keys: Mapping[str, KeySettings] = msgspec.field(default_factory=dict)
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
