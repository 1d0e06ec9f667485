"""The registry over HTTP, on a real server: what is taken, what is refused and how, and ending in order."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import sqlite3
from codecs import BOM_UTF8
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
import sqlalchemy as sa
from as_described import ask_as_described, described, described_operations, questions, routed
from registry_server import IDENTIFIERS, OPERATIONS, Api
from starlette.types import ASGIApp

from millstream.anchoring import LedgerEntry, LocalCas, MemoryLedger
from millstream.anchoring.ledger import verified_head
from millstream.anchoring.registry import DidRegistry, OperationState, RegistryDatabase
from millstream.anchoring.sidetree import SIDETREE, RequestError, long_form
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.core.cid import cid_of
from millstream.core.clock import SystemClock, VirtualClock
from millstream.rest import registry_app as registry_app_module
from millstream.rest.openapi import encode
from millstream.rest.registry_app import bulk_lines, describe, registry_app, registry_routes
from millstream.rest.submit_middleware import SubmitMiddleware
from millstream.testing.dids import DidOwner
from suite.sizes import sized

LEDGER, FILES = "/sidetree/v1/ledger", "/sidetree/v1/files"

DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "registry-openapi.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[Api]:
    made = Api(folder, batch_writer_timeout="200ms", max_open="500")
    yield made
    made.end()


def until_observed(api: Api, operation: str) -> Any:
    """The status of *operation* once it is final."""
    for _ in range(3000):
        status, found, _ = api.ask("GET", f"{OPERATIONS}/{operation}")
        assert status == 200
        if found["state"] in ("observed", "rejected", "dead"):
            return found
    raise AssertionError(f"{operation} is still {found['state']}")


def test_a_create_is_answered_with_its_document_and_becomes_resolvable(api: Api) -> None:
    person = DidOwner("api")
    status, answer, headers = api.submit(person.create)
    did = f"did:sidetree:{person.suffix}"
    assert status == 200
    assert answer["didDocument"]["id"] == did
    assert answer["didDocumentMetadata"]["method"]["published"] is False
    found = until_observed(api, headers["operation-id"])
    assert found["state"] == OperationState.OBSERVED
    status, resolved, _ = api.ask("GET", f"{IDENTIFIERS}/{did}")
    assert status == 200
    assert resolved["didDocumentMetadata"]["method"]["published"] is True


def test_a_did_that_is_not_anchored_resolves_over_http_where_the_settings_say_so(tmp_path: Path) -> None:
    person = DidOwner("waiting")
    api = Api(tmp_path, unpublished_operation_lifespan="1h", batch_writer_timeout="1h")
    try:
        did = f"did:sidetree:{person.suffix}"
        assert api.ask("GET", f"{IDENTIFIERS}/{did}")[0] == 404
        operation = api.submit(person.create)[2]["operation-id"]
        status, resolved, _ = api.ask("GET", f"{IDENTIFIERS}/{did}")
        assert (status, resolved["didDocument"]["id"]) == (200, did)
        method = resolved["didDocumentMetadata"]["method"]
        assert method["published"] is False
        assert [each["id"] for each in method["unpublishedOperations"]] == [operation]
    finally:
        api.end()


def test_a_did_is_updated_and_ended_over_http(api: Api) -> None:
    person = DidOwner("http-life")
    for operation in (person.create, person.update(), person.recover(), person.deactivate()):
        status, answer, headers = api.submit(operation)
        assert status == 200
        assert operation.type == "create" or answer["state"] in ("accepted", "queued")
    until_observed(api, headers["operation-id"])
    _, resolved, _ = api.ask("GET", f"{IDENTIFIERS}/did:sidetree:{person.suffix}")
    assert resolved["didDocumentMetadata"]["deactivated"] is True
    _, listing, _ = api.ask("GET", f"{IDENTIFIERS}/did:sidetree:{person.suffix}/operations")
    assert [status["state"] for status in listing["items"]] == ["observed"] * 4 and listing["next"] is None
    assert api.submit(person.update())[0] == 400


def test_the_operations_of_a_did_come_in_pages_in_the_order_of_acceptance(api: Api) -> None:
    person = DidOwner("many")
    sent = [
        api.submit(operation)[2]["operation-id"] for operation in (person.create, *(person.update() for _ in range(6)))
    ]
    path = f"{IDENTIFIERS}/did:sidetree:{person.suffix}/operations"
    found, after = list[str](), "0"
    for size in (3, 3, 1):
        _, page, _ = api.ask("GET", f"{path}?limit=3&after={after}")
        assert len(page["items"]) == size
        found += [status["id"] for status in page["items"]]
        after = page["next"]
    assert (found, after) == (sent, None)
    assert [status["id"] for status in api.ask("GET", f"{path}?limit=7")[1]["items"]] == sent
    until_observed(api, sent[-1])
    assert [status["id"] for status in api.ask("GET", path)[1]["items"]] == sent


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after=-1", "after=x", "offset=3", "limit=", "limit=1&limit=2"]
)
def test_a_page_that_cannot_be_asked_for_is_refused(api: Api, query: str) -> None:
    status, found, _ = api.ask("GET", f"{IDENTIFIERS}/did:sidetree:{DidOwner('nobody').suffix}/operations?{query}")
    assert (status, found["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-www-form-urlencoded", "text/plain", "application/did+json", "application/jsonl",
        "multipart/form-data", "application/json; charset=latin-1", "", "json",
    ],
)  # fmt: skip
def test_an_operation_of_another_type_is_refused_with_the_type_to_send(api: Api, kind: str) -> None:
    body = canonical_json(DidOwner("typed").create.request)
    status, found, _ = api.ask("POST", OPERATIONS, body, {"Content-Type": kind})
    assert (status, found["code"]) == (415, "unsupported_media_type")
    assert "application/json" in found["message"]


def test_lines_of_another_type_are_refused_with_the_type_to_send(api: Api) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/octet-stream"):
        status, found, _ = api.ask("POST", f"{OPERATIONS}/bulk", b"{}", {"Content-Type": kind})
        assert (status, found["code"]) == (415, "unsupported_media_type")
        assert "application/jsonl" in found["message"]
    for kind in ("application/jsonl", "application/x-ndjson", "application/json"):
        assert api.ask("POST", f"{OPERATIONS}/bulk", b"{}", {"Content-Type": kind})[0] == 200


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", 'APPLICATION/JSON;charset="UTF-8"', None]
)
def test_an_operation_is_taken_however_its_type_is_written(api: Api, kind: str | None) -> None:
    """Without a type it is taken for what it has to be (RFC 9110, 8.3)."""
    body = canonical_json(DidOwner("typed-well").create.request)
    assert api.ask("POST", OPERATIONS, body, {} if kind is None else {"Content-Type": kind})[0] == 200


def test_an_operation_that_is_compressed_is_refused(api: Api) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert api.ask("POST", OPERATIONS, gzip.compress(b"{}"), headers)[0] == 415


def test_a_long_form_resolves_before_it_is_submitted(api: Api) -> None:
    did = long_form(DidOwner("only-long").create, SIDETREE)
    status, resolved, headers = api.ask("GET", f"{IDENTIFIERS}/{did}")
    assert (status, resolved["didDocument"]["id"]) == (200, did)
    assert headers["content-type"].startswith("application/ld+json")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", OPERATIONS, b"{", 400, "not_json"),
        ("POST", OPERATIONS, b'{"type":"create"}', 400, "members"),
        ("POST", OPERATIONS, b" " * 10_001, 413, "too_large"),
        ("GET", OPERATIONS, None, 405, "http"),
        ("GET", f"{OPERATIONS}/nobody", None, 404, "not_found"),
        ("GET", f"{IDENTIFIERS}/did:web:x", None, 400, "did"),
        ("GET", f"{IDENTIFIERS}/did:sidetree:EiDyOQbbZAa3aiRzeCkV7LOx3SERjjH93EXoIM3UoN4oWg", None, 404, "not_found"),
        ("GET", "/elsewhere", None, 404, "http"),
        ("POST", f"{OPERATIONS}/bulk", b"{}\n" * 10_001, 400, "too_many"),
    ],
)
def test_what_is_wrong_is_said_with_a_code(
    api: Api, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    found, answer, _ = api.ask(method, path, body)
    assert (found, answer["code"]) == (status, code)
    assert answer["message"]


def test_in_bulk_each_line_has_its_outcome(api: Api) -> None:
    lines = [canonical_json(DidOwner(f"bulk-http{n}").create.request) for n in range(20)]
    body = BOM_UTF8 + b"\n".join([*lines, b"nonsense"])  # some programs put the mark before what they send
    status, outcomes, _ = api.ask("POST", f"{OPERATIONS}/bulk", body)
    assert status == 200
    assert [outcome.get("state", outcome.get("code")) for outcome in outcomes] == ["accepted"] * 20 + ["not_json"]
    until_observed(api, outcomes[0]["id"])


def test_many_clients_at_once_are_all_served(api: Api) -> None:
    people = [DidOwner(f"client{n}") for n in range(60)]
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda person: api.submit(person.create), people))
    assert {status for status, _, _ in answers} == {200}
    assert until_observed(api, answers[-1][2]["operation-id"])["state"] == "observed"


def test_requests_of_one_moment_are_answered_each_with_its_own_outcome(api: Api) -> None:
    """Pipelined on many connections, good and bad in turns: nobody gets another one's answer."""

    def talk(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
        for n in range(6):
            person = DidOwner(f"moment-{number}-{n}")
            body = canonical_json(person.create.request) if (number + n) % 3 else b'{"type":"create"}'
            connection.request("POST", OPERATIONS, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            if (number + n) % 3:
                assert answer["didDocument"]["id"] == f"did:sidetree:{person.suffix}"
            else:
                assert (response.status, answer["code"]) == (400, "members")
        connection.close()

    with ThreadPoolExecutor(16) as clients:
        list(clients.map(talk, range(16)))


def test_requests_that_have_already_arrived_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}")
    parts = RegistryDatabase(engine, SystemClock()), LocalCas(tmp_path), MemoryLedger(SystemClock())
    sizes, answers = list[int](), list[tuple[int, int]]()

    async def arrive(middleware: SubmitMiddleware) -> None:
        """One request in each turn of the event loop, as from many connections."""
        for number in range(8):
            body = b"{" if number == 5 else canonical_json(DidOwner(f"turn {number}").create.request)
            middleware.submit(body, lambda status, *_, number=number: answers.append((number, status)))
            await asyncio.sleep(0)
        while len(answers) < 8:
            await asyncio.sleep(0)

    with DidRegistry(*parts, instance="one") as registry:
        accept = registry.store.accept
        monkeypatch.setattr(registry.store, "accept", lambda all_: sizes.append(len(all_)) or accept(all_))
        asyncio.run(arrive(SubmitMiddleware(registry, registry_app(registry))))
    engine.dispose()
    assert sizes == [7]
    assert answers == [(number, 400 if number == 5 else 200) for number in range(8)]


async def status_of(app: ASGIApp, path: str) -> int:
    """The status of ``GET`` *path*."""
    return (await response_to(app, path))[0]


async def response_to(app: ASGIApp, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of the response to ``GET`` *path*."""
    sent = list[Any]()

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return int(sent[0]["status"]), dict(sent[0]["headers"]), sent[1]["body"]


def test_a_database_that_does_not_answer_is_said_soon_to_all_who_wait_and_by_the_readiness(tmp_path: Path) -> None:
    engine, clock = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}"), VirtualClock()
    parts = RegistryDatabase(engine, clock), LocalCas(tmp_path), MemoryLedger(clock)
    request = canonical_json(DidOwner("in vain").create.request)
    answers = list[tuple[int, str]]()

    def rename(old: str, new: str) -> None:
        with engine.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))

    async def ask(app: SubmitMiddleware) -> list[int]:
        done = asyncio.Event()

        def answer(status: int, headers: Any, _body: bytes) -> None:
            answers.append((status, dict(headers)[b"retry-after"].decode()))
            if len(answers) == 300:
                done.set()

        for _ in range(300):  # more than a commit takes
            app.submit(request, answer)
        await done.wait()
        ready = [await status_of(app, "/readyz")]
        rename("hidden", "registry_operations")
        return [*ready, await status_of(app, "/readyz")]

    with DidRegistry(*parts, instance="one") as registry:
        rename("registry_operations", "hidden")
        began = clock.monotonic()
        assert asyncio.run(ask(registry_app(registry, database_timeout=3.0))) == [503, 200]
    engine.dispose()
    assert answers == [(503, "5")] * 300
    assert clock.monotonic() - began <= 3.0, "one wait, and not one for each commit"


def test_storage_that_does_not_answer_is_said_without_where_it_is(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}")
    (tmp_path / "no-folder").touch()
    cas = LocalCas(tmp_path / "no-folder")
    parts = RegistryDatabase(engine, SystemClock()), cas, MemoryLedger(SystemClock())
    with DidRegistry(*parts, instance="one") as registry:
        status, headers, body = asyncio.run(response_to(registry_app(registry), f"{FILES}/{cid_of(b'x')}"))
    engine.dispose()
    assert (status, headers[b"retry-after"]) == (503, b"5")
    assert json.loads(body)["code"] == "busy" and b"no-folder" not in body


class _Unsplit(bytes):
    """A body that must not be split."""

    def splitlines(self, keepends: bool = False) -> list[bytes]:
        raise AssertionError("there would be an object for each line")

    def removeprefix(self, prefix: Any, /) -> bytes:
        return self


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_bulk_request_of_too_many_lines_is_refused_before_it_is_split(end: bytes) -> None:
    with pytest.raises(RequestError, match="10,001 lines"):
        bulk_lines(_Unsplit((b"{}" + end) * 10_000 + b"{}"))
    assert len(bulk_lines((b"{}" + end) * 10_000)) == 10_000
    assert bulk_lines(b"") == []


def test_a_bulk_request_that_never_ends_gives_its_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_app_module, "BULK_SECONDS", 0.01)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}")
    parts = RegistryDatabase(engine, SystemClock()), LocalCas(tmp_path), MemoryLedger(SystemClock())
    messages = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent = list[Any]()

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"{OPERATIONS}/bulk", "query_string": b"", "headers": []}
    with DidRegistry(*parts, instance="one") as registry:
        asyncio.run(registry_app(registry)(scope, receive, send))
    engine.dispose()
    assert sent[0]["status"] == 503
    assert b"did not arrive whole" in sent[1]["body"]


def test_bulk_requests_at_once_hold_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_app_module, "BULK_BYTES_AT_ONCE", 3_000)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}")
    parts = RegistryDatabase(engine, SystemClock()), LocalCas(tmp_path), MemoryLedger(SystemClock())

    async def bulk(app: ASGIApp, name: str, goes_on: asyncio.Event, begun: asyncio.Event) -> int:
        """The status of a request with one operation, of which 2,000 bytes come first."""
        body = canonical_json(DidOwner(name).create.request).ljust(2_100)
        messages = [{"type": "http.request", "body": body[:2_000], "more_body": True}]
        sent = list[Any]()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            begun.set()
            await goes_on.wait()
            return {"type": "http.request", "body": body[2_000:]}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": f"{OPERATIONS}/bulk", "query_string": b"", "headers": []}
        await app(scope, receive, send)
        return int(sent[0]["status"])

    async def ask(app: ASGIApp) -> list[int]:
        goes_on, begun, now = asyncio.Event(), asyncio.Event(), asyncio.Event()
        now.set()
        first = asyncio.create_task(bulk(app, "first", goes_on, begun))
        await begun.wait()
        refused = await bulk(app, "second", now, now)
        goes_on.set()
        return [refused, await first, await bulk(app, "second", now, now)]

    with DidRegistry(*parts, instance="one") as registry:
        assert asyncio.run(ask(registry_app(registry))) == [503, 200, 200]
    engine.dispose()


def test_a_check_that_fails_is_the_error_of_its_own_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}")
    parts = RegistryDatabase(engine, SystemClock()), LocalCas(tmp_path), MemoryLedger(SystemClock())
    requests = [canonical_json(DidOwner(name).create.request) for name in ("bad", "good")]
    answers = list[int]()

    async def arrive(middleware: SubmitMiddleware) -> None:
        for body in requests:
            middleware.submit(body, lambda status, *_: answers.append(status))
        assert not answers, "the caller is the parser of a connection"
        while len(answers) < 2:
            await asyncio.sleep(0)

    with DidRegistry(*parts, instance="one") as registry:
        check = registry.acceptance.check
        monkeypatch.setattr(registry.acceptance, "check", lambda data: check(None if data is requests[0] else data))
        asyncio.run(arrive(SubmitMiddleware(registry, registry_app(registry))))
    engine.dispose()
    assert answers == [500, 200]


def test_a_client_that_leaves_in_the_middle_of_a_request_harms_nobody(api: Api) -> None:
    body = canonical_json(DidOwner("leaver").create.request)
    with socket.create_connection(("127.0.0.1", api.port)) as leaving:
        head = f"POST {OPERATIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        leaving.sendall(head.encode() + body[:100])
    assert api.submit(DidOwner("stayer").create)[0] == 200


def test_it_is_alive_and_describes_itself(api: Api) -> None:
    assert api.ask("GET", "/healthz")[1]["status"] == "ok"
    status, found, _ = api.ask("GET", "/openapi.json")
    assert (status, found) == (200, json.loads(json.dumps(describe(SIDETREE))))
    assert DESCRIPTION.read_bytes() == encode(describe(SIDETREE)), "run `make openapi` and look at what changed"
    assert set(found["paths"]) >= {OPERATIONS, f"{OPERATIONS}/bulk", "/healthz", IDENTIFIERS + "/{did}"}


def test_every_route_is_described_and_nothing_else() -> None:
    registry: Any = SimpleNamespace(versions=SimpleNamespace(latest=SimpleNamespace(profile=SIDETREE)))
    assert described(describe(SIDETREE)) == routed(registry_routes(registry)) - {("GET", "/openapi.json")}


def test_the_ledger_is_read_in_pages_that_form_its_chain(api: Api) -> None:
    for number in range(3):
        until_observed(api, api.submit(DidOwner(f"paged{number}").create)[2]["operation-id"])
    entries, after = [], "0"
    while after is not None:
        status, page, _ = api.ask("GET", f"{LEDGER}?after={after}&limit=2")
        assert status == 200 and len(page["items"]) <= 2
        entries += page["items"]
        after = page["next"]
    assert [entry["number"] for entry in entries] == list(range(1, page["total"] + 1))
    head = verified_head(msgspec.convert(entries, list[LedgerEntry]))
    assert head is not None and head.number >= 3
    assert api.ask("GET", f"{LEDGER}?after={head.number}")[1] == {"items": [], "next": None, "total": head.number}


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=1001", "limit=1.5", "after=9007199254740992", "after=1&after=2"]
)
def test_a_page_that_there_cannot_be_is_refused(api: Api, query: str) -> None:
    status, answer, _ = api.ask("GET", f"{LEDGER}?{query}")
    assert (status, answer["code"]) == (400, "bad_request")


def test_files_of_batches_are_served_and_no_others(api: Api, folder: Path) -> None:
    """Event batches lie in the same storage, and their identifiers are in proofs that people hand out."""
    until_observed(api, api.submit(DidOwner("filed").create)[2]["operation-id"])
    anchor = api.ask("GET", f"{LEDGER}?limit=1")[1]["items"][0]["anchor_string"]
    cid = anchor.partition(".")[2]
    with urlopen(f"http://127.0.0.1:{api.port}{FILES}/{cid}") as answer:
        data = answer.read()
        assert "immutable" in answer.headers["cache-control"]
    assert cid_of(data) == cid
    private = LocalCas(folder / "cas").put(b'{"batches":"of events"}\n')
    assert api.ask("GET", f"{FILES}/{private}")[0] == 404
    assert api.ask("GET", f"{FILES}/{cid_of(b'nobody has this')}")[0] == 404
    assert api.ask("GET", f"{FILES}/millstream.toml")[0] == 400
    assert api.ask("POST", f"{FILES}/{cid}", b"x")[0] == 405
    assert api.ask("POST", LEDGER, b"x")[0] == 405


QUESTIONS = questions(
    described_operations(DESCRIPTION), lambda asked: asked.places & {"body", "query"}
)  # a path may be any text


@pytest.mark.long
@pytest.mark.parametrize(("operation", "mode"), QUESTIONS)
def test_whatever_is_asked_the_answer_is_as_described_and_never_500(api: Api, operation: str, mode: str) -> None:
    ask_as_described(DESCRIPTION, operation, mode, f"http://127.0.0.1:{api.port}", sized(ci=10, long=500))


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/sidetree/v1/identifiers/..%2f..%2fetc%2fpasswd", "/%00", "//etc/passwd"]
)
def test_no_path_leads_to_a_file(api: Api, path: str) -> None:
    status, answer, _ = api.ask("GET", path)
    assert status in (400, 404) and "root:" not in json.dumps(answer)


@pytest.mark.parametrize(("path", "most"), [(OPERATIONS, 10_000), (f"{OPERATIONS}/bulk", 64 << 20)])
def test_a_body_without_end_is_cut_off_at_the_limit(api: Api, path: str, most: int) -> None:
    """Sent in chunks, as somebody does who says nothing of its length: the answer comes before the end."""
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as sender:
        sender.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(most // 65_536 + 2):
                sender.sendall(chunk)
        assert sender.recv(100).startswith(b"HTTP/1.1 413 ")
    assert api.ask("GET", "/healthz")[0] == 200


def test_a_crowd_is_told_when_to_come_back(tmp_path: Path) -> None:
    crowded = Api(tmp_path, max_open="1", batch_writer_timeout="1h")
    try:
        assert crowded.submit(DidOwner("first").create)[0] == 200
        answers = (crowded.submit(DidOwner(f"late{n}").create) for n in range(5000))  # counted anew once a second
        answer, headers = next((answer, headers) for status, answer, headers in answers if status == 429)
        assert answer["code"] == "too_many_requests"
        assert int(headers["retry-after"]) >= 1
    finally:
        assert crowded.end() == 0


def test_p6_what_was_taken_before_the_end_is_anchored_by_the_next_instance(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = Api(tmp_path, batch_writer_timeout="1h")
    person = DidOwner("taken")
    _, _, headers = first.submit(person.create)
    assert first.end() == 0
    data = ["--data", str(tmp_path)]
    assert run(["anchor", "status", headers["operation-id"], "--json", *data]) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "accepted"
    assert run(["anchor", "cut", "--force", "--json", *data]) == 0
    assert json.loads(capfd.readouterr().out)["anchor_string"].startswith("1.")
    assert run(["anchor", "ledger", "--ledger", "registry", "--json", *data]) == 0
    assert json.loads(capfd.readouterr().out)["number"] == 1
    assert run(["did", "resolve", f"did:sidetree:{person.suffix}", *data]) == 0
    assert json.loads(capfd.readouterr().out)["didDocumentMetadata"]["method"]["published"] is True


def test_operations_come_from_a_file_as_well(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    people = [DidOwner(f"file{n}") for n in range(3)]
    lines = [canonical_json(person.create.request) for person in people]
    file = tmp_path / "operations.jsonl"
    file.write_bytes(b"\n\n".join([*lines, b"x" * 300_000, canonical_json(people[0].update().request)]))
    data = ["--data", str(tmp_path / "node")]
    assert run(["anchor", "submit", str(file), *data]) == 1
    out, err = capfd.readouterr()
    assert out == "operations: 4 accepted, 1 refused\n"
    assert err.startswith(f"{file}:7: ")
    assert run(["anchor", "cut", "--force", *data]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2, "an update waits until its create is observed"
    assert run(["anchor", "status", *data]) == 0
    assert "4 verified" in capfd.readouterr().out
    assert run(["anchor", "status", "nobody", *data]) == 3
    assert run(["anchor", "serve", "--http", "nowhere", *data]) == 2


def test_dead_operations_are_tried_again_on_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path)]
    file = tmp_path / "operations.jsonl"
    file.write_bytes(canonical_json(DidOwner("dead").create.request))
    assert run(["anchor", "submit", str(file), "--json", *data]) == 0
    name = json.loads(capfd.readouterr().out)["id"]
    with contextlib.closing(sqlite3.connect(tmp_path / "node.db")) as database, database:
        database.execute("UPDATE registry_operations SET state = 'dead', open = 0")
    assert run(["anchor", "redrive", "nobody", *data]) == 0
    assert run(["anchor", "redrive", name, *data]) == 0
    assert capfd.readouterr().out == "operations to retry: 0\noperations to retry: 1\n"
    assert run(["anchor", "cut", "--force", *data]) == 0


def test_the_files_may_lie_at_a_storage_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_ANCHORING__CAS", f"file://{tmp_path / 'elsewhere'}")
    file = tmp_path / "operations.jsonl"
    file.write_bytes(canonical_json(DidOwner("far").create.request))
    data = ["--data", str(tmp_path / "node")]
    assert run(["anchor", "submit", str(file), *data]) == 0
    assert run(["anchor", "cut", "--force", *data]) == 0
    assert len(list((tmp_path / "elsewhere" / "cas").glob("bafkrei*"))) == 3
    assert list((tmp_path / "node" / "cas").iterdir()) == []
