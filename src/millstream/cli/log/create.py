"""``millstream log create``."""

from __future__ import annotations

import click

from millstream.cli.change_log import record_change_if_node, require_audit_log
from millstream.cli.common import store_options
from millstream.cli.examples import example
from millstream.log import LogSpec
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store


@example("millstream log create weather")
@click.command()
@click.argument("name")
@store_options
def create(settings: Settings, name: str) -> None:
    """Create the log NAME if it does not exist."""
    with open_log_store(settings.log_url) as store:
        if is_new := not store.has(name):
            require_audit_log(settings)
        store.log(LogSpec(name))
    if is_new:
        record_change_if_node(settings, "create log", f"log {name}")
