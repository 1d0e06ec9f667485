"""The description of the registry's HTTP interface, as OpenAPI 3.1.

``python -m millstream.rest.openapi docs/reference/registry-openapi.json`` writes that of the network ``sidetree``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from millstream import __version__
from millstream.anchoring.registry import OperationEffect, OperationState
from millstream.anchoring.sidetree import SIDETREE, OperationType, Profile
from millstream.core.durable import write_durably

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_OBJECT: dict[str, Any] = {"type": "object"}


def describe(profile: Profile) -> dict[str, Any]:
    """The description for a network of *profile*."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream registry of decentralized identifiers", "version": __version__},
        "paths": {
            "/sidetree/v1/operations": {"post": _submit(profile)},
            "/sidetree/v1/operations/bulk": {"post": _bulk()},
            "/sidetree/v1/operations/{id}": {
                "get": _get("operationStatus", "Where an operation stands", [_path("id")], _ref("OperationStatus"))
            },
            "/sidetree/v1/identifiers/{did}": {
                "get": _get(
                    "resolve",
                    "The document of a DID, of its short or long form",
                    [_path("did")],
                    _OBJECT,
                    media="application/ld+json",
                )
            },
            "/sidetree/v1/identifiers/{did}/operations": {
                "get": _get(
                    "operationsOf",
                    "Where the recorded operations of a DID stand, in the order of acceptance; a page",
                    [_path("did"), *_page_parameters()],
                    _ref("OperationPage"),
                )
            },
            "/sidetree/v1/ledger": {"get": _ledger()},
            "/sidetree/v1/files/{cid}": {"get": _file()},
            "/healthz": {"get": _get("health", "Whether the instance is alive", [], _OBJECT)},
        },
        "components": {"schemas": _schemas()},
    }


def _schemas() -> dict[str, Any]:
    entry = {"number": _NUMBER, "time": _NUMBER, "anchor_string": _TEXT, "previous": _TEXT, "hash": _TEXT}
    page = {
        "items": {"type": "array", "items": _ref("LedgerEntry")},
        "next": {"type": ["string", "null"]},
        "total": _NUMBER,
    }
    return {
        "OperationStatus": _status_schema(),
        "OperationPage": _page_schema(),
        "LedgerEntry": {"type": "object", "required": [*entry], "properties": entry},
        "LedgerPage": {"type": "object", "required": [*page], "properties": page},
        "Error": _error_schema(),
    }


def _ledger() -> dict[str, Any]:
    text = "The entries of the ledger after a number, a page at a time"
    found = _get("ledger", text, _page_parameters(), _ref("LedgerPage"))
    del found["responses"]["404"]
    found["responses"] |= _errors("409")
    return found


def _file() -> dict[str, Any]:
    schema, media = {"type": "string", "format": "binary"}, "application/octet-stream"
    return _get("file", "A file of an anchored batch, by its CID", [_path("cid")], schema, media=media)


def encode_description() -> bytes:
    """The description for the network ``sidetree`` as it is checked in."""
    return msgspec.json.format(msgspec.json.encode(describe(SIDETREE)), indent=1) + b"\n"


def _submit(profile: Profile) -> dict[str, Any]:
    text = f"One operation, at most {profile.max_operation_bytes:,} bytes of JSON"
    schema = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": [t.value for t in OperationType]}},
    }
    return {
        "operationId": "submit",
        "summary": "Take one operation; it is durable when the answer comes",
        "requestBody": _body("application/json", schema, text),
        "responses": {
            "200": _response("Taken: the resolution of a new DID, or the status of the operation", _OBJECT)
            | {"headers": {"Operation-Id": {"schema": _TEXT, "description": "the id to ask for its status"}}},
            **_errors("400", "408", "409", "413", "415", "429", "503"),
        },
    }


def _bulk() -> dict[str, Any]:
    lines = _body("application/jsonl", _TEXT, "Operations, one a line")
    outcome = {
        "description": "A line for each operation: its status, or an error",
        "content": {"application/jsonl": {}},
    }
    return {
        "operationId": "submitBulk",
        "summary": "Take many operations in one transaction",
        "requestBody": lines,
        "responses": {"200": outcome, **_errors("400", "408", "409", "413", "415", "429", "503")},
    }


def _get(
    name: str,
    summary: str,
    parameters: list[dict[str, Any]],
    schema: dict[str, Any],
    *,
    media: str = "application/json",
) -> dict[str, Any]:
    errors = _errors("400", "404", "503") if parameters else {}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": _response("Found", schema, media), **errors},
    }


def _page_parameters() -> list[dict[str, Any]]:
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    after = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1, "default": 0}
    text = "The place to go on behind: what `next` was in the page before"
    return [
        {"name": "limit", "in": "query", "required": False, "schema": limit},
        {"name": "after", "in": "query", "required": False, "schema": after, "description": text},
    ]


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(media: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"required": True, "description": text, "content": {media: {"schema": schema}}}


def _response(text: str, schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}


def _errors(*statuses: str) -> dict[str, Any]:
    texts = {
        "400": "The request breaks a rule, which the code names",
        "404": "Not known here",
        "408": "The rest of the request did not come in time",
        "409": "This registry follows another one: it takes no operations, and has no ledger of its own",
        "413": "The body is too large; it is not read",
        "415": "The content type is another one than application/json (in bulk: application/jsonl), or not in UTF-8",
        "429": "Too many operations are under way; see Retry-After",
        "503": "The database does not answer; try again later",
    }
    return {status: _response(texts[status], _ref("Error")) for status in statuses}


def _status_schema() -> dict[str, Any]:
    optional = {"anchor": _NUMBER, "index": _NUMBER, "reason": _TEXT}
    nullable: dict[str, Any] = {name: {"type": [schema["type"], "null"]} for name, schema in optional.items()}
    nullable["effect"] = {"enum": [*(effect.value for effect in OperationEffect), None]}
    fixed = {"id": _TEXT, "suffix": _TEXT, "type": _TEXT, "accepted_at": _NUMBER, "retries": _NUMBER}
    state = {"enum": [state.value for state in OperationState]}
    return {"type": "object", "required": [*fixed, "state"], "properties": {**fixed, "state": state, **nullable}}


def _page_schema() -> dict[str, Any]:
    following = {"type": ["string", "null"], "description": "What `after` has to be for the page that follows"}
    items = {"type": "array", "items": _ref("OperationStatus")}
    return {"type": "object", "required": ["items", "next"], "properties": {"items": items, "next": following}}


def _error_schema() -> dict[str, Any]:
    return {"type": "object", "required": ["code", "message"], "properties": {"code": _TEXT, "message": _TEXT}}


if __name__ == "__main__":
    write_durably(Path(sys.argv[1]), encode_description())
