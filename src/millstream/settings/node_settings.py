"""All settings of a node: its sections, each from the package that it configures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from millstream.anchoring.registry.settings import RegistrySettings
from millstream.anchoring.settings import AnchoringSettings
from millstream.batching.settings import BatchingSettings
from millstream.core.amounts import Duration, format_duration
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section, SettingsError
from millstream.core.url_schemes import scheme_of
from millstream.log.settings import LogSettings, nerve_url
from millstream.messaging.broker.settings import BrokerSettings
from millstream.mill.settings import MillSettings
from millstream.pipeline.settings import PipelineSettings
from millstream.queue.settings import QueueSettings
from millstream.settings.console import ConsoleSettings
from millstream.settings.serving import HttpSettings, LoggingSettings, ServeSettings
from millstream.settings.verdict import VerdictSettings
from millstream.stores.settings import StoreSettings

DEFAULT_DATA = "./millstream-data"
PRIMARY_URL = "file://{data}/stores/primary?mount=cas:cas://{data}/cas"
"""The first store of a node: a local folder that also shows the content-addressed files as its space ``cas``."""


class NodeSettings(Section, frozen=True):
    """``database`` holds the node's tables: ``postgresql://user:password@host:port/name`` or ``mariadb://…``, and by
    default the file ``node.db`` in the node's folder. `millstream node move` moves the tables from one to the other.

    Several processes of `millstream serve`, on several hosts, may serve a node on a server: each role has one owner
    among them. A process that has not renewed its lease for ``lease`` is counted as lost, and others take its roles.
    """

    database: str = ""
    lease: Duration = Duration(15 * MICROSECONDS)

    def __post_init__(self) -> None:
        if self.database and scheme_of(self.database).extra not in ("postgresql", "mysql"):
            raise ValueError(
                "invalid database: write postgresql://user:password@host:port/name, mariadb://… or "
                "mysql://…, or leave it empty for the file node.db"
            )
        if self.lease < MICROSECONDS:
            raise ValueError(f"lease must be at least 1 s, not {format_duration(self.lease)}")


class Settings(Section, frozen=True):
    """All settings of a node. ``data`` is its folder; ``stores`` are its storage providers by id.

    ``data_access`` sets which accounts of the machine may use the folder: ``owner``, only its owner (0700), or
    ``group``, also the members of its group (0770).
    """

    data: str = DEFAULT_DATA
    data_access: Literal["owner", "group"] = "owner"
    node: NodeSettings = NodeSettings()
    log: LogSettings = LogSettings()
    batching: BatchingSettings = BatchingSettings()
    anchoring: AnchoringSettings = AnchoringSettings()
    registry: RegistrySettings = RegistrySettings()
    queue: QueueSettings = QueueSettings()
    broker: BrokerSettings = BrokerSettings()
    stores: Mapping[str, StoreSettings] = msgspec.field(default_factory=dict)
    mill: MillSettings = MillSettings()
    pipeline: PipelineSettings = PipelineSettings()
    console: ConsoleSettings = ConsoleSettings()
    serve: ServeSettings = ServeSettings()
    http: HttpSettings = HttpSettings()
    logging: LoggingSettings = LoggingSettings()
    verdict: VerdictSettings = VerdictSettings()

    @property
    def folder(self) -> Path:
        """The data folder, absolute."""
        return Path(self.data).expanduser().absolute()

    @property
    def log_url(self) -> str:
        """The URL of the log store. Raises :class:`SettingsError`, :class:`~millstream.log.LogInputError`."""
        if self.log.store.startswith("nerve:"):
            return nerve_url(self.log)
        return self.log.store or f"sqlite:///{self.folder / 'log.db'}"

    @property
    def store_urls(self) -> dict[str, str]:
        """The storage providers by id; without any configured, the one at :data:`PRIMARY_URL`."""
        return {name: _with_folder(url, self.folder) for name, url in self._store_urls.items()}

    def owns(self, store: str) -> bool:
        """Whether *store* is the node's own: its URL is written with ``{data}``, so that its folder may be made."""
        return "{data}" in self._store_urls.get(store, "").partition("?")[0]

    @property
    def _store_urls(self) -> dict[str, str]:
        return {name: store.url for name, store in self.stores.items()} or {"primary": PRIMARY_URL}

    @property
    def policy_space(self) -> tuple[str, str] | None:
        """The store and the space where the duplication policy files lie; None where they are in a folder.

        Raises :class:`SettingsError` where the setting has the form ``STORE:SPACE`` and names no configured store:
        a folder that does not exist has no policies, and nothing would be copied.
        """
        store, colon, space = self.mill.policies.partition(":")
        if colon and store in self.store_urls:
            return store, space
        if colon and "/" not in store and not self.policy_folder.exists():
            known = ", ".join(sorted(self.store_urls))
            raise SettingsError(
                f"setting mill.policies: no store {store[:80]!r} is configured, and there is no folder "
                f"{str(self.policy_folder)[:200]!r}; write STORE:SPACE with one of the stores {known}, or the path of "
                "a folder"
            )
        return None

    @property
    def audit_log_space(self) -> tuple[str, str] | None:
        """The store and the space to which the audit log is exported; None where it is not.

        Raises :class:`SettingsError` where the setting names no configured store and a space of it.
        """
        if not self.mill.audit_log:
            return None
        store, _, space = self.mill.audit_log.partition(":")
        if store not in self.store_urls or not space:
            known = ", ".join(sorted(self.store_urls))
            raise SettingsError(
                f"setting mill.audit_log: no store {store[:80]!r} is configured, or no space follows it; write "
                f"STORE:SPACE with one of the stores {known}"
            )
        return store, space

    @property
    def policy_folder(self) -> Path:
        """Where the duplication policy files lie."""
        return Path(self.mill.policies).expanduser().absolute() if self.mill.policies else self.folder / "policies"


def _with_folder(url: str, folder: Path) -> str:
    """*url* with the data folder in place of ``{data}``; what stands in a query is quoted once more."""
    path, mark, query = url.partition("?")
    quoted = quote(str(folder))
    return path.replace("{data}", quoted) + mark + query.replace("{data}", quote(quoted))
