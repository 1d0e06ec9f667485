"""Our moto server lets one of those win who create a name at the same time; moto itself does not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millstream.testing.moto import Application, SerializedWrites

CREATORS = 8


class CheckThenStore:
    """An application that stores as moto does: all who ask at the same time look first, and then all of them store."""

    def __init__(self) -> None:
        self.objects: set[str] = set()
        self.looked = threading.Barrier(CREATORS)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        exists = environ["PATH_INFO"] in self.objects
        with contextlib.suppress(threading.BrokenBarrierError):  # the others are not let in
            self.looked.wait(0.05)
        self.objects.add(environ["PATH_INFO"])
        start_response("412 Precondition Failed" if exists else "200 OK", [])
        return [b""]


def winners(application: Application) -> int:
    """How many of those who create one name are told that they have."""
    answers: list[str] = []

    def create(_: int) -> None:
        environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/bucket/name"}
        application(environ, lambda status, _headers: answers.append(status))

    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(create, range(CREATORS)))
    assert len(answers) == CREATORS
    return answers.count("200 OK")


def test_writes_to_one_path_wait_for_each_other() -> None:
    assert winners(CheckThenStore()) == CREATORS
    assert winners(SerializedWrites(CheckThenStore())) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_requests_that_create_nothing_do_not_wait(method: str) -> None:
    inside = threading.Barrier(CREATORS)

    def meet(_environ: dict[str, Any], _start_response: Any) -> Iterable[bytes]:
        inside.wait(30)
        return [b""]

    application = SerializedWrites(meet)
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/bucket/name"}
    with ThreadPoolExecutor(CREATORS) as pool:
        assert len(list(pool.map(lambda _: application(environ, None), range(CREATORS)))) == CREATORS
