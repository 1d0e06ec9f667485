"""Connections that do not keep to HTTP, or not to its pace, on a real server: each ends, in time and with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import threading
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest
from abusive import abusive_requests
from raw_http import Answer, RawConnection
from registry_server import OPERATIONS, Api
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millstream.core.amounts import parse_duration
from millstream.core.canonical import canonical_json
from millstream.core.event_loop import run_server
from millstream.rest.connection import LONGEST_HEAD, BoundedHttpProtocol
from millstream.rest.direct_requests import DirectAnswer, Headers
from millstream.rest.response_transport import ResponseTransport
from millstream.rest.server import serving
from millstream.settings import SettingsError, load_settings
from millstream.settings.serving import HttpSettings
from millstream.testing.dids import DidOwner
from millstream.testing.waiting import until

MOST = 40
HEAD = f"POST {OPERATIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
BULK = f"POST {OPERATIONS}/bulk HTTP/1.1\r\nHost: x\r\nContent-Type: application/jsonl\r\n".encode()
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A registry whose clients have little time."""
    http = {"header_timeout": "400ms", "body_timeout": "600ms", "max_connections": str(MOST)}
    made = Api(tmp_path_factory.mktemp("hasty"), http)
    yield made
    assert made.end() == 0


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    made = Api(tmp_path_factory.mktemp("registry"))
    yield made
    assert made.end() == 0


def talk(api: Api, data: bytes) -> Answer:
    """The one answer to *data*, after which the server closes."""
    with RawConnection(api.port) as connection:
        connection.send(data)
        found = connection.answer()
        assert connection.is_closed()
        return found


def assert_error(found: Answer, status: int, code: str) -> None:
    assert (found.status, found.body["code"]) == (status, code), found
    assert found.body["message"] and found.headers["connection"] == "close"
    assert found.headers["content-type"] == "application/json"


# Deadlines


@pytest.mark.parametrize(
    "part",
    [
        b"G",
        b"GET /healthz HTT",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Endless: aaaa",
        HEAD + b"Content-Length: 100\r\n",
    ],
)
def test_a_head_that_does_not_end_is_answered_with_408(hasty: Api, part: bytes) -> None:
    assert_error(talk(hasty, part), 408, "timeout")


@pytest.mark.parametrize(
    "part",
    [
        HEAD + b"Content-Length: 100\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-Trailer: ",
        BULK + b"Content-Length: 100\r\n\r\n{}\n",
    ],
)
def test_a_body_that_does_not_end_is_answered_with_408(hasty: Api, part: bytes) -> None:
    found = talk(hasty, part)
    assert_error(found, 408, "timeout")
    assert "0.6 seconds" in found.body["message"]


def test_a_connection_without_a_request_is_closed_without_an_answer(hasty: Api) -> None:
    with RawConnection(hasty.port) as silent, RawConnection(hasty.port) as empty:
        empty.send(b"\r\n\r\n")
        assert silent.is_closed() and empty.is_closed()


def test_headers_that_come_one_byte_at_a_time_do_not_move_the_deadline(hasty: Api) -> None:
    with RawConnection(hasty.port) as slow:
        slow.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        while not slow.is_answered_within(0.02):
            slow.send(b"a")
        assert_error(slow.answer(), 408, "timeout")


def test_a_body_that_comes_too_slowly_is_cut_though_it_is_never_silent(hasty: Api) -> None:
    with RawConnection(hasty.port) as slow:
        slow.send(BULK + b"Content-Length: 1000000\r\n\r\n")
        sent = 0
        while not slow.is_answered_within(0.05):
            slow.send(b" ")
            sent += 1
        found = slow.answer()
    assert_error(found, 408, "timeout")
    assert sent < 100 and "too slowly" in found.body["message"]


def test_an_upload_that_goes_on_is_not_cut_however_long_it_takes(hasty: Api) -> None:
    """Three times as long as a head and a silent body may take together."""
    with RawConnection(hasty.port) as upload:
        pieces = 60
        upload.send(BULK + b"Content-Length: %d\r\n\r\n" % (pieces * 1000))
        for _ in range(pieces):
            assert not upload.is_answered_within(0.05)
            upload.send(b"nonsense" * 124 + b"nonsens\n")
        found = upload.answer()
    assert found.status == 200 and found.body.count(b"not_json") == pieces


def test_an_idle_connection_is_kept_while_half_open_ones_are_let_go(hasty: Api) -> None:
    with RawConnection(hasty.port) as idle, RawConnection(hasty.port) as half:
        idle.send(HEALTH)
        assert idle.answer().status == 200
        half.send(b"GET /healthz HTTP/1.1\r\n")  # begins later, and its deadline is later
        assert_error(half.answer(), 408, "timeout")
        idle.send(HEALTH)
        assert idle.answer().status == 200
        idle.send(b"GET /healthz HTTP/1.1\r\n")
        assert_error(idle.answer(), 408, "timeout")


def test_a_client_that_is_asked_to_continue_has_its_time(hasty: Api) -> None:
    body = canonical_json(DidOwner("continuing").create.request)
    with RawConnection(hasty.port) as careful:
        careful.send(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert careful.answer().status == 100
        careful.send(body)
        assert careful.answer().status == 200


def test_half_open_requests_do_not_keep_others_out(hasty: Api) -> None:
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(RawConnection(hasty.port)) for _ in range(MOST - 5)]
        for number, half in enumerate(halves):
            half.send(b"GET / HTTP/1.1\r\n" if number % 2 else HEAD + b"Content-Length: 9\r\n\r\n{")
        assert hasty.submit(DidOwner("among-halves").create)[0] == 200
        assert [half.answer().status for half in halves] == [408] * len(halves)
        assert all(half.is_closed() for half in halves)


def test_more_connections_than_allowed_are_told_to_come_back(hasty: Api) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(RawConnection(hasty.port)) for _ in range(MOST)]
        for connection in held:
            connection.send(HEALTH)
            assert connection.answer().status == 200
        found = talk(hasty, HEALTH)
        assert_error(found, 503, "busy")
        assert int(found.headers["retry-after"]) >= 1
        held[0].send(HEALTH)
        assert held[0].answer().status == 200
        held[1].close()
        until(lambda: hasty.ask("GET", "/healthz")[0] == 200, "a free place")


def test_a_client_that_reads_no_answer_is_let_go() -> None:
    """The answer is larger than all buffers between the two."""

    async def talkative(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * (32 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b"x"})  # waits until the client has read most of that
        gone.set()

    async def talk_to_the_deaf() -> None:
        async with serving(talkative, "127.0.0.1", 0, quick_settings()) as port:
            with RawConnection(port) as deaf:
                deaf.send(HEALTH)
                await asyncio.wait_for(gone.wait(), 30)

    gone = asyncio.Event()
    run_server(talk_to_the_deaf())


def quick_settings() -> HttpSettings:
    return HttpSettings(header_timeout=parse_duration("400ms"), body_timeout=parse_duration("400ms"))


def test_a_limit_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HTTP__HEADER_TIMEOUT", "0s")
    with pytest.raises(SettingsError, match="header_timeout"):
        load_settings({})


# Bodies that are too long


@pytest.mark.parametrize(("head", "most"), [(HEAD, 10_000), (BULK, 64 << 20)])
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_a_body_that_is_announced_as_too_long_is_refused_before_it_comes(
    api: Api, head: bytes, most: int, expect: bytes
) -> None:
    found = talk(api, head + expect + b"Content-Length: %d\r\n\r\n" % (most + 1))
    assert_error(found, 413, "too_large")


def test_the_answer_arrives_though_the_client_goes_on_sending(api: Api) -> None:
    with RawConnection(api.port) as sender:
        sender.send(HEAD + b"Content-Length: 50000000\r\n\r\n")
        for _ in range(200):
            sender.send(b" " * 65_536)
        assert_error(sender.answer(), 413, "too_large")
        assert sender.is_closed()


def test_a_chunked_body_is_cut_at_the_limit(api: Api) -> None:
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    found = talk(api, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 3 * chunk)
    assert_error(found, 413, "too_large")


def test_a_body_of_the_longest_kind_is_taken(api: Api) -> None:
    with RawConnection(api.port) as connection:
        connection.send(HEAD + b"Content-Length: 10000\r\n\r\n" + b" " * 10_000 + HEALTH)
        assert connection.answer().body["code"] == "not_json"
        assert connection.answer().status == 200


def test_a_request_that_is_refused_early_ends_its_connection(api: Api) -> None:
    """What would follow is the rest of a body, and must never be taken for a request."""
    with RawConnection(api.port) as connection:
        connection.send(b"GET /elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        assert_error(connection.answer(), 404, "http")
        connection.send(HEALTH)
        assert connection.is_closed()


# What is not HTTP


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"hello\r\n\r\n", 400, "bad_request"),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET /\r\n", 400, "bad_request"),
        (b"GET /\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/0.9\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/7.3\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nA b: x\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: \x00\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, "bad_request"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, "http"),
        (HEAD + b"Content-Length: many\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400, "bad_request"),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400, "bad_request"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", 400, "bad_request"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx\r\n", 400, "bad_request"),
        (b"GET /" + b"a" * LONGEST_HEAD + b" HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 9000, 414, "too_long"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * LONGEST_HEAD + b" " * 9000, 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * LONGEST_HEAD, 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, "http"),
        (b"DELETE /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "http"),
    ],
)
def test_what_is_not_understood_is_answered_as_every_error_is(api: Api, data: bytes, status: int, code: str) -> None:
    assert_error(talk(api, data), status, code)


def test_a_request_that_ends_in_the_middle_is_told_so(api: Api) -> None:
    for part in (b"GET /hea", HEAD + b"Content-Length: 9\r\n\r\n{"):
        with RawConnection(api.port) as connection:
            connection.send(part)
            connection.send_no_more()
            found = connection.answer()
            assert_error(found, 400, "bad_request")
            assert "incomplete" in found.body["message"]


def test_a_client_that_sends_no_more_after_its_request_is_answered(api: Api) -> None:
    with RawConnection(api.port) as connection:
        connection.send(HEALTH)
        connection.send_no_more()
        assert connection.answer().status == 200
        assert connection.is_closed()


def test_requests_before_a_malformed_one_are_answered_first(api: Api) -> None:
    body = canonical_json(DidOwner("before-nonsense").create.request)
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with RawConnection(api.port) as connection:
        connection.send(request + HEALTH + HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        assert [connection.answer().status for _ in range(3)] == [200, 200, 400]
        assert connection.is_closed()


def test_many_requests_at_once_are_all_answered_in_order(api: Api) -> None:
    """More than fit into one piece that the server reads, so that pieces end within requests."""
    bad = HEAD + b"Content-Length: 9000\r\n\r\n" + b" " * 9000
    with RawConnection(api.port) as connection:
        sender = threading.Thread(target=lambda: connection.send((HEALTH * 20 + bad) * 50))
        sender.start()
        assert [connection.answer().status for _ in range(21 * 50)] == ([200] * 20 + [400]) * 50
        sender.join()


def test_an_answer_ends_when_its_client_leaves_though_another_request_waits() -> None:
    async def endless(_scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        ended.set()

    async def serve() -> None:
        async with serving(endless, "127.0.0.1", 0, HttpSettings()) as port:
            with RawConnection(port) as leaving:
                leaving.send(2 * HEALTH)
                await asyncio.to_thread(leaving.is_answered_within, 10)
            await asyncio.wait_for(ended.wait(), 10)

    ended = asyncio.Event()
    run_server(serve())


def test_requests_that_wait_for_earlier_answers_are_few_however_many_are_sent() -> None:
    """Each that waits takes a hundred times the memory of its bytes."""
    count, waiting, connections = 6_000, list[int](), list[BoundedHttpProtocol]()

    async def numbered(scope: Scope, receive: Receive, send: Send) -> None:
        if not connections:
            connections.extend(each for each in gc.get_objects() if isinstance(each, BoundedHttpProtocol))
        waiting.append(max(len(each.pipeline) for each in connections))
        await Response(scope["path"])(scope, receive, send)

    def ask(port: int) -> None:
        with RawConnection(port) as one:
            sender = threading.Thread(
                target=one.send, args=[b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % n for n in range(count))]
            )
            sender.start()
            assert [one.answer().body for _ in range(count)] == [b"/%d" % number for number in range(count)]
            sender.join()

    async def serve() -> None:
        async with serving(numbered, "127.0.0.1", 0, HttpSettings()) as port:
            await asyncio.to_thread(ask, port)

    run_server(serve())
    assert max(waiting) < 500


@pytest.mark.parametrize("part", [b"0\r\nX: ", b"0\r\n", b"1;", b"1\r\n{\r\n0\r\nContent-Type: "])
@pytest.mark.parametrize("unit", [b"a" * 65_536, b"X: a\r\n" * 10_000])
def test_trailers_and_extensions_without_end_are_refused(api: Api, part: bytes, unit: bytes) -> None:
    with RawConnection(api.port) as connection:
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + part)
        for _ in range(100):
            connection.send(unit)
        found = connection.answer()
    assert found.status in (400, 431) and found.headers["connection"] == "close"


def test_trailers_are_no_headers(api: Api) -> None:
    body = canonical_json(DidOwner("trailers").create.request)
    chunks = b"%x\r\n%s\r\n0\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n" % (len(body), body)
    with RawConnection(api.port) as connection:
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + HEALTH)
        assert [connection.answer().status for _ in range(2)] == [200, 200]


def test_an_upgrade_that_is_not_offered_is_passed_over(api: Api) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    found = talk(api, request + b"\x81\x05hello")
    assert found.status == 200 and found.headers["connection"] == "close"


@pytest.mark.parametrize("sends_no_more", [True, False])
def test_a_request_with_an_empty_line_behind_it_is_answered(sends_no_more: bool) -> None:
    """The line comes by itself, and the answer after the deadline that headers have."""
    began = threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, passed.set)
        await passed.wait()
        await Response(b"late")(scope, receive, send)

    def ask(port: int) -> Any:
        with RawConnection(port) as connection:
            connection.send(HEALTH)
            assert began.wait(10)
            connection.send(b"\r\n")
            if sends_no_more:
                connection.send_no_more()
            return connection.answer().body

    async def serve() -> Any:
        settings = HttpSettings(header_timeout=parse_duration("50ms"), body_timeout=parse_duration("50ms"))
        async with serving(slow, "127.0.0.1", 0, settings) as port:
            return await asyncio.to_thread(ask, port)

    assert run_server(serve()) == b"late"


def test_a_fault_of_the_server_has_a_code_and_no_details() -> None:
    async def broken(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError("a secret")

    async def ask() -> Any:
        async with serving(broken, "127.0.0.1", 0, HttpSettings()) as port:
            return await asyncio.to_thread(lambda: _ask(port))

    def _ask(port: int) -> Answer:
        with RawConnection(port) as connection:
            connection.send(HEALTH)
            return connection.answer()

    found = run_server(ask())
    assert (found.status, found.body["code"]) == (500, "internal") and "secret" not in json.dumps(found.body)


# Requests without ASGI


class _Direct:
    """An application that answers each request with the way on which it came."""

    url = b"/direct"

    def __init__(self) -> None:
        self.direct = self

    def takes(self, headers: Headers) -> bool:
        return (b"x-unusual", b"1") not in headers

    def submit(self, body: bytes, answer: DirectAnswer) -> None:
        text = b"direct " + body
        later = functools.partial(answer, 200, [(b"content-length", b"%d" % len(text))], text)
        asyncio.get_running_loop().call_later(0.02, later)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await Response(b"asgi " + body)(scope, receive, send)


def test_usual_requests_of_a_direct_endpoint_are_answered_without_asgi_and_in_order() -> None:
    def post(body: str, *headers: str, path: str = "/direct", version: str = "1.1") -> bytes:
        lines = (f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers, "", body)
        return "\r\n".join(lines).encode()

    def ask(port: int) -> None:
        with RawConnection(port) as one:
            for request, expected in (
                (post("a"), b"direct a"),
                (post("b", "X-Unusual: 1"), b"asgi b"),
                (post("c", path="/other"), b"asgi c"),
                (post("d", path="/direct?x=1"), b"asgi d"),
                (post("e").replace(b"POST", b"PUT"), b"asgi e"),
            ):
                one.send(request)
                assert one.answer().body == expected
            one.send(post("f") + post("g") + post("h"))  # those behind the first are for the queue of ASGI
            assert [one.answer().body for _ in range(3)] == [b"direct f", b"asgi g", b"asgi h"]
            one.send(post("i"))
            assert one.answer().body == b"direct i"
        with RawConnection(port) as leaving:
            leaving.send(post("left"))
        for last in (post("j", "Connection: close"), post("j", version="1.0")):
            with RawConnection(port) as closing:
                closing.send(last)
                found = closing.answer()
                assert found.body.endswith(b" j") and found.headers["connection"] == "close"
                assert closing.is_closed()
        with RawConnection(port) as half:
            half.send(post("k"))
            half.send_no_more()
            assert half.answer().body == b"direct k" and half.is_closed()

    async def serve() -> None:
        async with serving(_Direct(), "127.0.0.1", 0, HttpSettings()) as port:
            await asyncio.to_thread(ask, port)

    run_server(serve())


def test_a_direct_request_is_freed_without_the_cyclic_garbage_collector() -> None:
    requests, kept = list[weakref.ref[Any]](), list[int]()

    class Recording(_Direct):
        def submit(self, body: bytes, answer: DirectAnswer) -> None:
            request = cast(Any, answer).__self__
            requests.append(weakref.ref(request))
            kept.append(len(request.body))
            answer(200, [(b"content-length", b"%d" % len(body))], body)

    def ask(port: int) -> None:
        with RawConnection(port) as one:
            for _ in range(3):
                one.send(b"POST /direct HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
                assert one.answer().body == b"body"

    async def serve() -> None:
        async with serving(Recording(), "127.0.0.1", 0, HttpSettings()) as port:
            await asyncio.to_thread(ask, port)

    gc.disable()
    try:
        run_server(serve())
        assert [one() for one in requests[:2]] == [None, None]
    finally:
        gc.enable()
    assert kept == [0, 0, 0]


# Abuse


def test_no_abuse_makes_the_server_fail(api: Api) -> None:
    """Every request is answered with an error of its own making, or with what it asked for; none with 5xx."""
    requests = abusive_requests()
    assert len(requests) >= 290
    for name, data in requests.items():
        with RawConnection(api.port) as connection:
            connection.send(data)
            connection.send_no_more()
            found = connection.answer()
        assert found.status < 500, (name, found)
        if found.status >= 400 and not name.startswith("HEAD "):
            assert found.body["code"] and found.body["message"], (name, found)
    assert api.ask("GET", "/healthz")[0] == 200


# Packets


class _Written:
    """A transport that keeps each write by itself."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.write = self.writes.append
        self.abort = self.pause_reading = self.resume_reading = lambda: None

    def get_extra_info(self, _name: str) -> None: ...

    def is_closing(self) -> bool:
        return False


def test_the_head_of_an_answer_is_sent_with_a_body_that_follows_at_once_and_waits_for_no_other() -> None:
    async def answer() -> list[bytes]:
        written = _Written()
        output = ResponseTransport(written, asyncio.get_running_loop(), lambda: None, lambda: False)  # type: ignore[arg-type]
        for body in (b"first", b"second"):
            output.hold_next()
            output.write(b"head ")
            output.write(body)
        output.hold_next()
        output.write(b"head alone ")
        await asyncio.sleep(0)
        output.write(b"late body")
        return written.writes

    assert run_server(answer()) == [b"head first", b"head second", b"head alone ", b"late body"]
