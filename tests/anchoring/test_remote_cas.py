"""Content-addressed files from places that are wrong, slow, absent or too generous: the next one is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import LocalCas, MemoryCas, StoreBackedCas
from millstream.anchoring import remote_cas as module
from millstream.anchoring.errors import (
    CasDamagedError,
    CasNotFoundError,
    CasOverlongError,
    CasTooLargeError,
    CasUnavailableError,
)
from millstream.anchoring.http_reader import HttpReader
from millstream.anchoring.remote_cas import CasFailure, CasSource, FallbackCas, HttpCas, open_cas_source
from millstream.core.cid import CidError, CidForm, cid_of
from millstream.core.clock import VirtualClock
from millstream.core.errors import InputError
from millstream.stores import open_provider

DATA = b"a file of a batch"
LARGE = bytes(range(256)) * 2_000


@pytest.mark.parametrize("form", list(CidForm))
@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "of several chunks"])
def test_a_gateway_gives_files_of_every_form_of_name(web: Any, form: CidForm, data: bytes) -> None:
    cid = cid_of(data, form)
    web.answers[f"/ipfs/{cid}"] = data
    assert HttpCas(f"{web.url}/ipfs/").get(cid, len(data)) == data


def test_a_node_is_asked_where_it_serves_its_files(web: Any) -> None:
    cid = cid_of(DATA)
    web.answers[f"/sidetree/v1/files/{cid}"] = DATA
    assert open_cas_source(web.url).files.get(cid, 100) == DATA
    assert open_cas_source(f"{web.url}/").files.get(cid, 100) == DATA


def test_what_a_place_sends_is_told_apart(web: Any) -> None:
    cid, cas = cid_of(DATA), HttpCas(f"{web.url}/ipfs")
    with pytest.raises(CasNotFoundError):
        cas.get(cid, 100)
    web.answers[f"/ipfs/{cid}"] = b"something else"
    with pytest.raises(CasDamagedError):
        cas.get(cid, 100)
    web.answers[f"/ipfs/{cid}"] = 500
    with pytest.raises(CasUnavailableError, match="status 500"):
        cas.get(cid, 100)
    with pytest.raises(CidError):
        cas.get("../../etc/passwd", 100)


def test_no_more_than_the_limit_is_read_whatever_the_server_says(web: Any) -> None:
    cid, sent = cid_of(DATA), []

    def flood(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            sent.append(handler.wfile.write(b"x" * 65_536))

    web.answers[f"/ipfs/{cid}"] = flood
    with pytest.raises(CasOverlongError, match="1,000 bytes"):
        HttpCas(f"{web.url}/ipfs").get(cid, 1_000)
    web.answers[f"/ipfs/{cid}"] = b"x" * 100_000  # with its length in the header: nothing is read at all
    with pytest.raises(CasOverlongError):
        HttpCas(f"{web.url}/ipfs").get(cid, 1_000)


def test_the_next_place_is_asked_and_each_refusal_is_told(web: Any, other_web: Any, tmp_path: Path) -> None:
    told = list[CasFailure]()
    local = LocalCas(tmp_path / "cas")
    cid = local.put(DATA)
    web.answers[f"/lies/{cid}"] = b"something else"
    web.answers[f"/more/{cid}"] = DATA * 100
    web.answers[f"/slow/{cid}"] = lambda _handler: web.ended.wait(60)
    places = [open_cas_source(f"{web.url}/{name}", seconds=0.2) for name in ("lies", "more", "slow", "lacks")]
    cas = FallbackCas([*places, open_cas_source(str(local.root))], told.append)
    assert cas.get(cid, 200) == DATA
    kinds = [type(refusal.error) for refusal in told]
    assert kinds == [CasDamagedError, CasOverlongError, CasUnavailableError, CasNotFoundError]
    assert [refusal.place for refusal in told] == [f"{web.url}/{name}" for name in ("lies", "more", "slow", "lacks")]


def test_a_place_that_does_not_answer_is_asked_last_for_a_while() -> None:
    clock, asked = VirtualClock(), list[str]()
    files = MemoryCas()
    cid = files.put(DATA)

    class Place:
        def __init__(self, name: str, *, works: bool) -> None:
            self.name, self.works = name, works

        def get(self, cid: str, limit: int) -> bytes:
            asked.append(self.name)
            if not self.works:
                raise CasUnavailableError
            return files.get(cid, limit)

    first = Place("first", works=False)
    cas = FallbackCas([CasSource("first", first), CasSource("second", Place("second", works=True))], clock=clock)
    for _ in range(3):
        cas.get(cid, 100)
    assert asked == ["first", "second", "second", "second"]
    clock.advance(61)
    first.works = True
    cas.get(cid, 100)
    cas.get(cid, 100)
    assert asked[4:] == ["first", "first"]


def test_a_file_that_no_place_has_is_an_error_that_names_them_all(web: Any) -> None:
    cid = cid_of(DATA)
    web.answers[f"/lies/{cid}"] = b"something else"
    cas = FallbackCas([open_cas_source(f"{web.url}/{name}") for name in ("lacks", "lies")])
    with pytest.raises(CasNotFoundError) as error:
        cas.get(cid, 100)
    assert cid in str(error.value) and "/lacks: not there" in str(error.value)
    assert "/lies: the content does not match the hash of the file" in str(error.value)
    with pytest.raises(CasNotFoundError):
        FallbackCas([open_cas_source(f"{web.url}/lacks")]).get(cid, 100)


def test_a_file_that_really_is_too_large_is_the_fault_of_who_anchored_it(web: Any, tmp_path: Path) -> None:
    """Or one anchor of a stranger would hold up every follower for ever."""
    cid = cid_of(LARGE)
    web.answers[f"/ipfs/{cid}"] = LARGE
    with pytest.raises(CasTooLargeError):
        FallbackCas([open_cas_source(f"{web.url}/ipfs")]).get(cid, 1_000)
    web.answers[f"/ipfs/{cid}"] = LARGE + b"and more"
    with pytest.raises(CasNotFoundError, match="longer than the file may be"):
        FallbackCas([open_cas_source(f"{web.url}/ipfs")]).get(cid, 1_000)


def test_a_file_without_end_is_given_up(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 500_000)
    cid = cid_of(LARGE + LARGE)
    web.answers[f"/ipfs/{cid}"] = LARGE + LARGE
    with pytest.raises(CasNotFoundError):
        FallbackCas([open_cas_source(f"{web.url}/ipfs")]).get(cid, 1_000)


def test_a_storage_provider_is_read_and_never_written(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    cid = StoreBackedCas(open_provider(full.as_uri(), create=True)).put(DATA)
    open_provider(empty.as_uri(), create=True)
    before = sorted(empty.rglob("*"))
    place = CasSource("empty", StoreBackedCas(open_provider(empty.as_uri())))
    files = StoreBackedCas(open_provider(full.as_uri()))
    assert FallbackCas([place, CasSource("full", files)]).get(cid, 100) == DATA
    assert sorted(empty.rglob("*")) == before


def test_folders_are_places_by_path_and_by_url(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    cid = LocalCas(folder).put(DATA)
    for text in (str(folder), folder.as_uri(), folder.as_uri().replace("file:", "cas:")):
        assert open_cas_source(text).files.get(cid, 100) == DATA


@pytest.mark.parametrize("text", ["ftp://host/x", "file://elsewhere/x", "http://host/x?y=1", "gopher://x", "file://"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        open_cas_source(text)


def test_no_place_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="--cas"):
        FallbackCas([])


def test_the_reader_of_a_place_can_be_shared(web: Any) -> None:
    cid = cid_of(DATA)
    web.answers[f"/x/{cid}"] = DATA
    assert HttpCas(f"{web.url}/x", HttpReader(seconds=5)).get(cid, 100) == DATA
