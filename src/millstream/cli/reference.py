"""The reference of commands, settings and HTTP, as documents: ``python -m millstream.cli.reference docs/reference``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click
import msgspec

from millstream.cli.main import millstream
from millstream.core.amounts import Duration, format_duration
from millstream.settings import Settings
from millstream.settings.loading import table_kind

_ROLE = re.compile(r":\w+:`~?(?:\w+\.)*(\w+)`")
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?")
WIDTH = 100
"""Columns of a help text."""


def commands() -> str:
    """Every command with its help text, as Markdown."""
    head = (
        "# Commands\n\n"
        "What `--help` says of every command. All of them end with the same [exit codes](../exit-codes.md);\n"
        "`--json` prints one object per line, and `millstream --debug …` the traceback of an error. Shells\n"
        "complete commands and options after a setup (`millstream completion bash`, `zsh`, `fish`).\n\n"
        "A `DURATION` is written as `500ms`, `30s`, `20m`, `2h` or `7d`, or as a number of seconds; a `SIZE` as\n"
        "`500000`, `64MB` or `10GiB`. Brackets behind an option have its default and the range of its values.\n"
        "`setting a.b` is `b` in the section `a` of the [settings](settings.md).\n\n"
        "The [README](../../../README.md#terms) explains the words *log*, *event time*, *batch*, *anchor*, *ledger*,\n"
        "*proof*, *store*, *space*, *item*, *policy*, *manifest* and *node*. These words are used, too:\n\n"
        "| word | meaning |\n|---|---|\n"
        "| open batch | a batch that a later message can still change |\n"
        "| tick | a message with a time only, by which batches of quiet sources end |\n"
        "| checkpoint | the signed size and root hash of a ledger; a verifier key is the public key of its signer |\n"
        "| witness, quorum | a server of another operator that signs (cosigns) checkpoints; how many must do so |\n"
        "| plan, change guard | the copies and deletions that a command is about to make in a space; the "
        "[change guard](../../mill.md#the-change-guard) holds a plan with too many until an operator approves it |\n"
        "| account | the name under which a policy is saved, such as `local` |\n"
        "| audited store | a store whose changes are recorded in the [audit log](../../formats/audit.md) |\n"
        "| report, finding | the result of a check of a space; a copy or item with a problem |\n"
        "| task, worker, queue | work on an item or a space; the process that does it; where tasks wait for workers |\n"
        "| dead | failed for good: a task or message at its last attempt, or a task with a permanent error |\n"
        "| broker, topic, group | the server for RocketMQ clients in a node; a log that it serves; consumers that "
        "share the messages of a topic |\n"
        "| DID, identifier | a decentralized identifier; the [registry](../../registry.md) anchors its operations |\n\n"
    )
    return head + "\n".join(_sections(millstream, "millstream", 1))


def _sections(command: click.Command, path: str, depth: int) -> Iterator[str]:
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    lines = [line.rstrip() for line in command.get_help(context).replace("\b", "").splitlines()]
    heading = "#" * min(depth + 1, 4)
    yield f"{heading} `{path}`\n\n```text\n" + "\n".join(lines) + "\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _sections(found, f"{path} {name}", depth + 1)


def settings() -> str:
    """Every setting with its default, as Markdown."""
    head = (
        "# Settings\n\n"
        "A node reads `millstream.toml` in its data folder, or the file that `--config` or `MILLSTREAM_CONFIG` names.\n"
        "Environment variables override the file (`MILLSTREAM_BATCHING__WINDOW=30m` sets `window` of the section\n"
        "`batching`), and the flags of a command override both. `millstream config show` prints every setting\n"
        "with its value and where it comes from. Durations are written as `500ms`, `30s`, `20m`, `2h`, `7d`.\n\n"
    )
    return head + "\n".join(_tables(Settings, ""))


def _tables(struct: type[msgspec.Struct], section: str) -> Iterator[str]:
    hints = get_type_hints(struct)
    plain, nested = list[str](), list[tuple[str, type[msgspec.Struct]]]()
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        name = f"{section}.{field.name}".lstrip(".")
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            nested.append((name, kind))
        elif (inner := table_kind(kind)) is not None:
            nested.append((f"{name}.NAME" if get_origin(kind) is Mapping else f"[{name}]", inner))
        else:
            plain.append(f"| `{field.name}` | {_default(field, kind)} |")
    heading = f"## `[{section}]`" if section else "## The node"
    text = _ROLE.sub(r"`\1`", inspect.cleandoc(struct.__doc__ or "").replace("``", "`"))
    text = _PAGE.sub(r"[docs/\1](../../\1\2)", text)
    if plain:
        yield f"{heading}\n\n{text}\n\n| setting | default |\n|---|---|\n" + "\n".join(plain) + "\n"
    for name, kind in nested:
        yield from _tables(kind, name)


def _default(field: msgspec.structs.FieldInfo, kind: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is msgspec.NODEFAULT:
        return "must be set"
    if value is None or value == "":
        return "not set"
    if Duration in (kind, *get_args(kind)):
        return f"`{', '.join(map(format_duration, [value] if isinstance(value, int) else value))}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | int | float):
        return f"`{value}`"
    return "none" if not value else f"`{msgspec.json.encode(value).decode()}`"


def http() -> str:
    """Every operation of the interfaces for programs, as Markdown."""
    from millstream.anchoring.sidetree import SIDETREE
    from millstream.rest import description, registry_app

    head = (
        "# HTTP for programs\n\n"
        "A node that serves its [console](../../console.md) answers programs under `/api/v1`. Without users everybody\n"
        "on the same machine may do everything; else a program authenticates by HTTP Basic over TLS. Errors are\n"
        '`{"code", "message"}`; lists have `items`, and `next` where there are more; every table can be exported as\n'
        "CSV (`?format=csv`). `/metrics` is for Prometheus, `/healthz` and `/readyz` are for supervisors.\n\n"
        "The whole description: [openapi.json](../openapi.json), which the node serves as `/api/v1/openapi.json`.\n\n"
    )
    registry = (
        "\n## The registry of identifiers\n\n"
        "What `millstream anchor serve`, and a node with `serve.registry_http`, answer\n"
        "([registry](../../registry.md), [registry-openapi.json](../registry-openapi.json)).\n\n"
    )
    return head + _operations(description.describe()) + registry + _operations(registry_app.describe(SIDETREE))


def _operations(description: Mapping[str, Any]) -> str:
    rows = [
        f"| {method.upper()} | `{path}` | {operation['summary'].rstrip('.')} | {_role(operation)} |"
        for path, methods in sorted(description["paths"].items())
        for method, operation in methods.items()
    ]
    return "| method | path | what it does | role |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _role(operation: Mapping[str, Any]) -> str:
    return str(operation.get("description", "")).removeprefix("Takes the role ").rstrip(".") or "–"


PAGES = {"commands.md": commands, "settings.md": settings, "http.md": http}
"""The generated documents, by name."""


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), "utf-8")
