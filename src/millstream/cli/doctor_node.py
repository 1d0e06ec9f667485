"""Checks of what the settings name: servers, stores, keys, and the packages for them."""

from __future__ import annotations

import contextlib
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from millstream.cli.doctor_machine import Check
from millstream.core.errors import MillstreamError
from millstream.core.url_schemes import scheme_of
from millstream.log.backend_schemes import is_database_store
from millstream.log.backends.objects.bucket import is_bucket_url
from millstream.settings import Settings
from millstream.stores.provider_schemes import provider_scheme
from millstream.stores.sources import is_source_url, local_folder, place_of

_SECONDS = 3.0


def needed_extras(settings: Settings, environment: Mapping[str, str]) -> frozenset[str]:
    """The extras of the package that *settings* ask for, and variables of OpenTelemetry in *environment*."""
    needed = {_extra(url) for url in _urls(settings).values()}
    if settings.serve.registry or settings.serve.registry_http:
        needed.add("sidetree")
    if settings.anchoring.timestamp_authorities:
        needed.add("timestamps")
    if settings.serve.registry_http or settings.console.users:
        needed.add("serve")
    if settings.pipeline.master != type(settings.pipeline)().master:
        needed.add("pipeline")
    if any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in environment):
        needed.add("telemetry")
    return frozenset(needed)


def check_node(settings: Settings) -> Iterator[Check]:
    """Checks of the servers and stores that *settings* name; only a bucket of logs is written to."""
    if is_database_store(settings.log_url):
        yield from _database(settings.log_url)
    if is_bucket_url(settings.log_url):
        yield _bucket(settings.log_url)
    for setting, url in _urls(settings).items():
        if setting != "log.store":
            yield from _server(setting, url)
    for name, url in settings.store_urls.items():
        folder = local_folder(url) if provider_scheme(url).takes_copies else None
        if folder is not None and not settings.owns(name):
            yield _local_store(name, folder)
    yield from _shared_places(settings.store_urls)
    yield from _access(settings)


def _urls(settings: Settings) -> dict[str, str]:
    """The URLs of servers in *settings*, by the name of the setting."""
    urls = {
        "log.store": settings.log_url,
        "node.database": settings.node.database,
        "queue.broker": settings.queue.broker,
        "queue.database": settings.queue.database,
        "registry.database": settings.registry.database,
        "anchoring.cas": settings.anchoring.cas,
        **{f"stores.{name}": url for name, url in settings.store_urls.items()},
        **{f"serve.ingest.{name}": role.url for name, role in settings.serve.ingest.items()},
        **{f"serve.relay.{name}": role.url for name, role in settings.serve.relay.items()},
    }
    return {setting: url for setting, url in urls.items() if _extra(url)}


def _extra(url: str) -> str:
    """The extra of the package that contains the client for *url*; empty if none is needed."""
    return scheme_of(url).extra or provider_scheme(url).extra


def _server(setting: str, url: str) -> Iterator[Check]:
    """Whether a server listens at *url*; an S3 store without an endpoint is Amazon's, and is not called."""
    if option := provider_scheme(url).server_option:
        endpoint = parse_qs(urlsplit(url).query).get(option)
        if not endpoint:
            return
        url = endpoint[0]
    fix = f"start the server, or correct the setting {setting}"
    parts, needed_for = urlsplit(url), "what the setting is for"
    try:
        port = parts.port or scheme_of(parts).port
    except ValueError:  # whose text may be a part of the password
        fix = f"correct the setting {setting}; write special characters of a password as %XX"
        yield Check(setting, False, "the port of the URL is not a number", needed_for, fix)
        return
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_SECONDS):
            yield Check(setting, True, f"{parts.hostname}:{port} answers", needed_for)
    except OSError as error:
        yield Check(setting, False, f"{parts.hostname}:{port} does not answer: {error}", needed_for, fix)


def _local_store(name: str, folder: Path) -> Check:
    try:
        is_there = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    except OSError as error:
        fix = "let this account enter the folders above it, or run the command as the node's account"
        return Check(f"stores.{name}", False, f"{folder} cannot be looked at: {error.strerror}", "the store", fix)
    fix = f"mount its disk; or, for a new store, mkdir -p {folder}"
    found = f"{folder} exists" if is_there else f"{folder} does not exist"
    return Check(f"stores.{name}", is_there, found, "the store", fix)


def _shared_places(urls: Mapping[str, str]) -> Iterator[Check]:
    """Stores of copies at one place: one copy there would count as several."""
    names: dict[object, str] = {}
    for name, url in urls.items():
        if not provider_scheme(url).takes_copies or is_source_url(url):
            continue
        first = names.setdefault(place_of(url), name)
        if first != name:
            fix = f"give stores.{name} another place (or endpoint=URL, if it is on another server), or remove it from "
            fix += f"the policies and the settings, and run millstream mill retire {name}"
            yield Check(f"stores.{name}", False, f"it is at the place of stores.{first}", "a copy of its own", fix)


def _access(settings: Settings) -> Iterator[Check]:
    """Whether the broker's keys and certificates, and the roles of the settings, can be used as they are written."""
    from millstream.cli.log_sources import MqttIngestRunner

    for log, role in settings.serve.ingest.items():
        try:
            MqttIngestRunner(log, role)
        except MillstreamError as error:
            yield Check(f"ingest {log}", False, str(error), "millstream serve", f"correct [serve.ingest.{log}]")
    if settings.broker == type(settings.broker)():
        return
    try:
        from millstream.messaging.broker.security.access_keys import read_keyring
        from millstream.messaging.broker.security.tls import read_tls

        read_keyring(settings.broker.keys)
        read_tls(settings.broker)
        yield Check("broker", True, "keys and certificates can be used", "clients of the broker")
    except MillstreamError as error:
        yield Check("broker", False, str(error), "clients of the broker", "correct the section broker of the settings")
    except ImportError:
        return  # which the extra messaging says


def _bucket(url: str) -> Check:
    """Tests whether exactly one of several concurrent creators of a name succeeds in the bucket of the log store."""
    from millstream.log.backends.objects.probe import UnfitBucketError, probe_bucket

    try:
        from millstream.stores.s3.log_bucket import open_log_bucket

        with contextlib.closing(open_log_bucket(url)) as bucket:
            record = probe_bucket(bucket)
    except UnfitBucketError as error:
        return Check("log bucket", False, str(error), "the log", "keep the logs elsewhere")
    except MillstreamError as error:
        return Check(
            "log bucket", False, str(error), "the log", "correct the URL of the log store, or start its server"
        )
    return Check("log bucket", True, f"1 of {max(record.creators)} concurrent creators of a name won", "the log")


def _database(url: str) -> Iterator[Check]:
    from millstream.log.backends import mysql, postgres
    from millstream.log.backends.mysql import server as mysql_server
    from millstream.log.backends.nerve import is_nerve, parse_nerve
    from millstream.log.backends.postgres import server as postgres_server

    backends = {"mysql": (mysql, mysql_server), "postgresql": (postgres, postgres_server)}
    backend, server = backends[url.partition("://")[0]]
    try:
        address = parse_nerve(url).database if is_nerve(url) else backend.parse_address(url)
        version, compared = server.compare_server(address)
    except MillstreamError as error:
        fix = f"correct the URL of the log store, or start the server with the settings in {server.CONFIGURATION}"
        yield Check("log server", False, str(error), "the log", fix)
        return
    yield Check("log server", True, version, "the log")
    for setting in compared:
        needed_for = "a log that survives a power loss" if setting.guards_durability else "a fast log"
        yield Check(setting.name, setting.ok, setting.found, needed_for, setting.fix)
