"""The description of the interface for programs, as OpenAPI 3.1; ``docs/reference/openapi.json`` is a copy of it.

``python -m millstream.rest.description FILE`` writes that copy anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from millstream import __version__
from millstream.core.durable import write_durably
from millstream.rest.endpoint import Endpoint, FileDownload, NoBody
from millstream.rest.views import all_endpoints

PREFIX = "/api/v1"

_ERROR = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
}
_TEXTS = {
    "400": "What is asked cannot be understood; the message says where",
    "401": "Nobody, or a wrong password",
    "403": "The role does not allow it, or the request comes from another site",
    "404": "Not known here",
    "408": "The rest of the request did not come in time",
    "409": "It cannot be done as things are; the message says why",
    "412": "Somebody saved another version meanwhile",
    "413": "The body is too large; it is not read",
    "414": "The address is too long",
    "415": "The content type is another one than application/json, or not in UTF-8",
    "428": "The header If-Match is missing",
    "429": "Too many wrong passwords",
    "503": "Somebody else holds it, or a part does not answer; try again later",
}


def describe() -> dict[str, Any]:
    """The description."""
    endpoints = all_endpoints()
    types = {kind for e in endpoints for kind in (e.query, e.body, e.answer) if kind is not FileDownload}
    _, components = msgspec.json.schema_components(sorted(types, key=str), ref_template="#/components/schemas/{name}")
    schemas = {name: _worded(schema) for name, schema in components.items()} | {"Error": _ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schemas)
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": __version__,
            "description": "Look at a node and act on it. Times are microseconds since the epoch, UTC.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"basic": []}, {}],
    }


def encode_description() -> bytes:
    """The description as a file."""
    return msgspec.json.format(msgspec.json.encode(describe()), indent=1) + b"\n"


def _worded(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* with its docstring as plain text."""
    if "description" not in schema:
        return schema
    text = re.sub(r":\w+:`~?([\w. ]+)`", r"`\1`", " ".join(schema["description"].split()))
    return {**schema, "description": text.replace("``", "`")}


def _operation(endpoint: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    fields = schemas[endpoint.query.__name__]
    required = set(fields.get("required", ()))
    parameters = [
        {
            "name": name,
            "in": "path" if name in endpoint.in_path else "query",
            "required": name in required,
            "schema": _plain(schema),
        }
        for name, schema in fields.get("properties", {}).items()
    ]
    if endpoint.is_table:
        parameters.append({"name": "format", "in": "query", "required": False, "schema": {"enum": ["json", "csv"]}})
    if endpoint.conditional:
        schema = {"type": "string", "pattern": '^"?[0-9a-z]{4,16}"?$'}
        parameters.append({"name": "If-Match", "in": "header", "required": True, "schema": schema})
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"Takes the role {endpoint.role.value}.",
        "parameters": parameters,
        "responses": {"200": _answer(endpoint), **_errors(endpoint)},
    }
    if endpoint.body is not NoBody:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{endpoint.body.__name__}"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.answer is FileDownload:
        media = {"type": "string", "format": "binary"}
        content: dict[str, Any] = {"application/octet-stream": {"schema": media}, "application/json": {"schema": {}}}
        return {"description": "The file", "content": content}
    (reference,), _ = msgspec.json.schema_components([endpoint.answer], ref_template="#/components/schemas/{name}")
    content = {"application/json": {"schema": reference}}
    if endpoint.is_table:
        content["text/csv"] = {"schema": {"type": "string"}}
    return {"description": "Done" if endpoint.method != "GET" else "Found", "content": content}


def _errors(endpoint: Endpoint) -> dict[str, Any]:
    statuses = {"400", "401", "403", "404", "409", "414", "429", "503"}
    statuses |= {"408", "413", "415"} if endpoint.body is not NoBody else set()
    statuses |= {"412", "428"} if endpoint.conditional else set()
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": _TEXTS[status], "content": content} for status in sorted(statuses)}


def _plain(schema: Any) -> Any:
    """*schema* of a parameter: what may be left out is not null there, it is just absent."""
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
        rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
        return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}
    return schema


if __name__ == "__main__":
    write_durably(Path(sys.argv[1]), encode_description())
