"""Settings: defaults, then a TOML file, then the environment, then flags; each value knows where it came from.

The file is ``millstream.toml`` in the node's data folder, or the one that ``--config`` or ``MILLSTREAM_CONFIG`` names.
A variable ``MILLSTREAM_BATCHING__WINDOW=30m`` sets ``window`` in the section ``batching``. No other package reads
settings from the environment.
"""

from __future__ import annotations

from millstream.settings.loading import FILE_NAME, load_settings
from millstream.settings.readable import readable
from millstream.settings.sections import (
    PRIMARY_URL,
    AlarmSettings,
    AnchoringSettings,
    BatchingSettings,
    BrakeSettings,
    FollowSettings,
    LogSettings,
    ProduceSettings,
    RegistrySettings,
    Settings,
    SettingsError,
    StoreSettings,
)
from millstream.settings.serving import IngestRole, LogFormat, LoggingSettings, LogLevel, RelayRole

__all__ = [
    "FILE_NAME",
    "PRIMARY_URL",
    "AlarmSettings",
    "AnchoringSettings",
    "BatchingSettings",
    "BrakeSettings",
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
]
