"""Settings: defaults, then a TOML file, then the environment, then flags; each value knows where it came from.

The file is ``millstream.toml`` in the node's data folder, or the one that ``--config`` or ``MILLSTREAM_CONFIG`` names.
A variable ``MILLSTREAM_BATCHING__WINDOW=30m`` sets ``window`` in the section ``batching``. No other package reads
settings from the environment.

A section is a class in the module ``settings`` of the package that it configures; :class:`Settings` composes them. The
sections of the console, of HTTP and of `millstream serve` are in this package, which lies below what they configure.
"""

from __future__ import annotations

from millstream.anchoring.registry.settings import FollowSettings, RegistrySettings
from millstream.anchoring.settings import AnchoringSettings
from millstream.batching.settings import BatchingSettings
from millstream.core.settings import SettingsError
from millstream.ingest.settings import IngestRole
from millstream.log.relay.settings import RelayRole
from millstream.log.settings import LogSettings
from millstream.mill.settings import AlarmSettings, ChangeGuardSettings, ProduceSettings
from millstream.settings.loading import FILE_NAME, load_settings, settings_file
from millstream.settings.node_settings import PRIMARY_URL, Settings
from millstream.settings.readable import readable
from millstream.settings.redaction import redacted, secret_values
from millstream.settings.serving import LogFormat, LoggingSettings, LogLevel
from millstream.stores.settings import StoreSettings

__all__ = [
    "FILE_NAME",
    "PRIMARY_URL",
    "AlarmSettings",
    "AnchoringSettings",
    "BatchingSettings",
    "ChangeGuardSettings",
    "FollowSettings",
    "IngestRole",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "LoggingSettings",
    "ProduceSettings",
    "RegistrySettings",
    "RelayRole",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "load_settings",
    "readable",
    "redacted",
    "secret_values",
    "settings_file",
]
