"""Settings, log lines and texts are shown without secrets, which the types of the settings declare."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from millstream.cli.logging_setup import start_logging, stop_logging
from millstream.cli.main import run
from millstream.core.database_server import open_server
from millstream.core.secrets import Secret, SecretCommand, SecretUrl, is_secret_name, public_url, safe_url
from millstream.core.sql import SqlInputError
from millstream.node import Node
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest
from millstream.rest.views import system
from millstream.settings import Settings, load_settings, redacted, secret_values

SETTINGS = """
log.store = "mysql://ada:S3CRET-log@db.example/log?tls_ca=/ca.pem"
anchoring.cas = "s3://bucket/prefix?endpoint=https://S3CRET-user@s3.example&secret_key=S3CRET-key"
node.database = "postgresql://ada:S3CRET-node@db.example/node"
registry.database = "mysql://ada:S3CRET-re/g@istry@db.example/did"
registry.follow.ledger = "https://ada:S3CRET-follow@registry.example/entries"
registry.follow.cas = ["https://cas.example/?token=S3CRET-cas", "https://S3CRET-cas2@cas.example/"]
queue.broker = "amqp://ada:S3CRET-queue@mq.example/v"
stores.far.url = "s3://bucket?signature=S3CRET-store"
mill.alarms.webhook = "https://hooks.example:8443/services/S3CRET-hook?a=S3CRET-hook2"
mill.alarms.command = ["/usr/bin/tell", "--key=S3CRET-arg", "S3CRET-arg2"]
pipeline.confs = { "spark.hadoop.fs.s3a.secret.key" = "S3CRET-spark", "spark.ui.port" = "4040" }
serve.ingest.weather = { url = "mqtt://ada:S3CRET-mqtt@mqtt.example", topics = ["a"] }
serve.relay.orders = { url = "postgresql://ada:S3CRET-relay@db.example/shop" }
log.rules = [{ log = "*", tier = "s3://old?token=S3CRET-tier", segment_bytes = "1MB" }]
batching.override = [{ source = "a" }]

[console.users.ada]
password = "S3CRET-hash"
[log.nerve.q]
hosts.one = { host = "h", password = "S3CRET-nerve" }
"""
"""Settings with a secret wherever one can be; each begins with ``S3CRET``."""

NOT_SECRET = {"secret_file", "token_file", "password_file"}
"""Files that hold a secret: their names are shown."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "millstream.toml").write_text(SETTINGS, "utf-8")
    return load_settings({"data": str(tmp_path)}, environment={})[0]


def structs(kind: Any, seen: set[Any]) -> Iterator[type[msgspec.Struct]]:
    """The sections that *kind* is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        yield kind
        for inner in get_type_hints(kind).values():
            yield from structs(inner, seen)
    for inner in get_args(kind):
        yield from structs(inner, seen)


def test_every_setting_that_is_called_like_a_secret_is_declared_as_one() -> None:
    undeclared = [
        f"{section.__name__}.{name}"
        for section in structs(Settings, set())
        for name, kind in get_type_hints(section).items()
        if (is_secret_name(name) or name in ("webhook", "command") or "password" in name)
        and name not in NOT_SECRET
        and kind not in (Secret, SecretUrl, SecretCommand)
    ]
    assert not undeclared, "declare their types as Secret, SecretUrl or SecretCommand"


def test_settings_for_people_have_no_secrets_and_keep_the_rest(settings: Settings) -> None:
    shown = redacted(settings)
    text = msgspec.json.encode(shown).decode()
    assert "S3CRET" not in text
    assert shown.mill.alarms.webhook == "https://hooks.example:8443/***"
    assert shown.mill.alarms.command == ("/usr/bin/tell", "***", "***")
    assert shown.queue.broker == "amqp://ada:***@mq.example/v"
    assert shown.pipeline.confs == {"spark.hadoop.fs.s3a.secret.key": "***", "spark.ui.port": "4040"}
    assert redacted(Settings()) == Settings(), "nothing is secret in the defaults"


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_config_show_prints_no_secrets(
    settings: Settings, option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "show", "--data", settings.data, *option]) == 0
    shown = capsys.readouterr().out
    assert "S3CRET" not in shown and "hooks.example" in shown


def test_the_interface_and_the_page_of_settings_show_no_secrets(tmp_path: Path) -> None:
    url = "https://hooks.example/services/S3CRET-hook"
    (tmp_path / "millstream.toml").write_text(f'mill.alarms.webhook = "{url}"\n', "utf-8")
    settings, origins = load_settings({"data": str(tmp_path)}, environment={})
    with Node.open(settings, create=True) as node:
        app = AppContext(node, origins=origins)
        asked: ApiRequest[Any, Any] = ApiRequest(None, None, app.access.principal(None))  # type: ignore[arg-type]
        rows = {row.setting: row for row in system.settings(app, asked).items}
    assert rows["mill.alarms.webhook"].value == "https://hooks.example/***"


def test_log_lines_have_no_secrets_of_the_settings(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = secret_values(settings)
    assert "S3CRET-re/g@istry" in secrets
    start_logging("json", "info", secrets=secrets)
    try:
        logging.getLogger("millstream.test").warning(
            "no answer from %s: POST /%s", settings.mill.alarms.webhook, "services/S3CRET-hook?a=S3CRET-hook2"
        )
    finally:
        stop_logging()
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "no answer from https://hooks.example:8443/***: POST /***"


def test_doctor_prints_no_part_of_a_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream.toml").write_text('queue.broker = "amqp://ada:S3CRET/x@mq.example/v"\n', "utf-8")
    run(["doctor", "--data", str(tmp_path)])
    assert "S3CRET" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["sslpassword", "ssl_key_password", "access_token", "client_secret", "aws_secret_access_key", "refreshToken"],
)
def test_names_that_end_in_that_of_a_secret_hide_what_follows(name: str) -> None:
    url = f"postgresql://u@h/d?sslkey=/k&{name}=S3CRET&sslmode=require"
    assert safe_url(url) == f"postgresql://u@h/d?sslkey=/k&{name}=***&sslmode=require"
    assert safe_url(f"s3://b/p?{name}_file=/k") == f"s3://b/p?{name}_file=/k"


def test_the_error_of_an_invalid_database_url_shows_no_secret_of_its_options() -> None:
    with pytest.raises(SqlInputError) as caught:
        open_server("postgres://u@h/d?password=S3CRET")
    assert "S3CRET" not in str(caught.value)


def test_urls_that_are_shown_keep_what_is_no_secret() -> None:
    for url in ("file:///a/b?mount=cas:cas:///c", "mysql://ada@h/d?password_file=/x", "s3://b/p?profile=p", ""):
        assert safe_url(url) == url
    assert public_url(SecretUrl("http://[::1]:80/x")) == "http://[::1]:80/***"
    assert public_url(SecretUrl("nonsense")) == public_url(SecretUrl("http://[")) == "***"
