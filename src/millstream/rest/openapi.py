"""OpenAPI 3.1 documents, from the declarations of endpoints alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream import __version__
from millstream.rest.endpoint import Endpoint

_REFERENCE = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
}


def document(
    info: Mapping[str, str], endpoints: Sequence[Endpoint], errors: Mapping[int, str], *, prefix: str = ""
) -> dict[str, Any]:
    """The document of *endpoints*, whose paths begin with *prefix*; *errors* says what each status means."""
    asked = _components({kind for e in endpoints for kind in (e.query, *e.request_types.values())})
    answers = {kind for e in endpoints for kind in e.response_types.values()}
    given, partial = _components(answers), _partial_structs(answers)
    always = {name: _always_there(schema) for name, schema in given.items() if name not in asked.keys() | partial}
    schemas = {name: _worded(schema) for name, schema in {**given, **asked, **always}.items()} | {"Error": _ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = prefix + re.sub(r":\w+}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schemas, errors)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": __version__, **info},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def encode(description: Mapping[str, Any]) -> bytes:
    """*description* as a file."""
    return msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"


def _components(kinds: set[Any]) -> dict[str, Any]:
    return msgspec.json.schema_components(sorted(kinds - {bytes}, key=str), ref_template=_REFERENCE)[1]


def _always_there(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* of a part of an answer, which is sent with all its members, those at their defaults too."""
    return {**schema, "required": list(schema["properties"])} if "properties" in schema else schema


def _partial_structs(kinds: set[Any]) -> set[str]:
    """The names of the structs within *kinds* that are sent without members at their defaults."""
    partial, seen = set[str](), set[Any]()
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(kinds))
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            struct = getattr(info.cls, "__origin__", info.cls)
            if struct.__struct_config__.omit_defaults or any(field.default is msgspec.UNSET for field in info.fields):
                partial.add(struct.__name__)
        parts = [getattr(info, name) for name in info.__struct_fields__]
        parts += [part for group in parts if isinstance(group, tuple) for part in group]
        waiting += [part for part in parts if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field)]
    return partial


def _worded(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* with its docstring as plain text."""
    if "description" not in schema:
        return schema
    text = re.sub(r":\w+:`~?([\w. ]+)`", r"`\1`", " ".join(schema["description"].split()))
    return {**schema, "description": text.replace("``", "`")}


def _operation(endpoint: Endpoint, schemas: Mapping[str, Any], errors: Mapping[int, str]) -> dict[str, Any]:
    problem = {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}}
    described: dict[str, Any] = {"operationId": endpoint.name, "summary": endpoint.summary}
    if endpoint.role is not None:
        described["description"] = f"Takes the role {endpoint.role.value}."
    described["parameters"] = _parameters(endpoint, schemas)
    described["responses"] = {
        "200": _response(endpoint),
        **{str(s): {"description": errors[s], "content": problem} for s in endpoint.error_statuses},
    }
    if endpoint.request_types:
        text = {"description": endpoint.request_text} if endpoint.request_text else {}
        described["requestBody"] = {"required": True, **text, "content": _content(endpoint.request_types)}
    return described


def _parameters(endpoint: Endpoint, schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = schemas[endpoint.query.__name__]
    parameters = [
        {
            "name": name,
            "in": "path" if name in endpoint.in_path else "query",
            "required": name in fields.get("required", ()),
            "schema": _plain(schema),
        }
        for name, schema in fields.get("properties", {}).items()
    ]
    if endpoint.is_table:
        parameters.append({"name": "format", "in": "query", "required": False, "schema": {"enum": ["json", "csv"]}})
    if endpoint.conditional:
        schema = {"type": "string", "pattern": '^"?[0-9a-z]{4,16}"?$'}
        parameters.append({"name": "If-Match", "in": "header", "required": True, "schema": schema})
    return parameters


def _response(endpoint: Endpoint) -> dict[str, Any]:
    usual = "The file" if bytes in endpoint.response_types.values() else "Done" if endpoint.method != "GET" else "Found"
    headers = {name: {"schema": {"type": "string"}, "description": text} for name, text in endpoint.headers.items()}
    content = _content(endpoint.response_types)
    return {"description": endpoint.response_text or usual, "content": content} | (
        {"headers": headers} if headers else {}
    )


def _content(kinds: Mapping[str, Any]) -> dict[str, Any]:
    return {media: {"schema": _schema(kind)} for media, kind in kinds.items()}


def _schema(kind: Any) -> Any:
    if kind is bytes:
        return {"type": "string", "format": "binary"}
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return schema


def _plain(schema: Any) -> Any:
    """*schema* of a parameter: what may be left out is not null there, it is just absent."""
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
        rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
        return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}
    return schema
