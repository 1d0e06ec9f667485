"""The conformance suite of content-addressed storage, and storage that fails on purpose.

Inherit :class:`CasConformance` in a test module and give it a fixture ``cas`` and a method ``damage``::

    class TestMyCas(CasConformance):
        @pytest.fixture
        def cas(self) -> Cas:
            return MyCas()

        def damage(self, cas: Cas, cid: str, data: bytes | None) -> None:
            ...  # put *data* in the place of the file, or lose it
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from millstream.anchoring.cas import Cas, checked, not_found
from millstream.anchoring.errors import (
    CasDamagedError,
    CasNotFoundError,
    CasTooLargeError,
    CasUnavailableError,
)
from millstream.core.cid import CidError, CidForm, cid_of

LIMIT = 1000


class CasConformance:
    """What every :class:`millstream.anchoring.Cas` does."""

    @abc.abstractmethod
    def damage(self, cas: Cas, cid: str, data: bytes | None) -> None:
        """Put *data* in the place of file *cid*, or lose the file where it is None."""

    @pytest.mark.parametrize("data", [b"", b"x", b"line\n" * 100])
    def test_what_is_put_is_got_back(self, cas: Cas, data: bytes) -> None:
        cid = cas.put(data)
        assert cid == cid_of(data)
        assert cas.get(cid, LIMIT) == data
        assert cas.has(cid)

    @pytest.mark.parametrize("form", CidForm)
    def test_a_file_has_the_name_of_the_form_that_is_asked_for(self, cas: Cas, form: CidForm) -> None:
        large = bytes(range(256)) * 1200  # more than one chunk of IPFS
        names = cas.put_many([large, b"small"], form)
        assert list(names) == [cid_of(large, form), cid_of(b"small", form)]
        assert cas.put(large) == cid_of(large), "the raw form is there beside it"
        assert [cas.get(name, len(large)) for name in names] == [large, b"small"]
        assert set(cas.cids()) == {*names, cid_of(large)}
        with pytest.raises(CasTooLargeError, match=names[0]):
            cas.get(names[0], len(large) - 1)
        self.damage(cas, names[0], large[:-1] + b"x")
        with pytest.raises(CasDamagedError, match=names[0]):
            cas.get(names[0], len(large))

    def test_putting_the_same_bytes_twice_keeps_one_file(self, cas: Cas) -> None:
        assert cas.put(b"same") == cas.put(b"same")
        assert list(cas.cids()) == [cid_of(b"same")]

    def test_many_files_are_put_in_order(self, cas: Cas) -> None:
        files = [b"%d" % n for n in range(150)]
        assert list(cas.put_many(iter(files))) == [cid_of(data) for data in files]
        assert list(cas.cids()) == sorted(map(cid_of, files))
        assert list(cas.put_many([])) == []

    def test_a_file_that_is_not_there_is_named(self, cas: Cas) -> None:
        cid = cid_of(b"nobody put this")
        assert not cas.has(cid)
        with pytest.raises(CasNotFoundError, match=cid):
            cas.get(cid, LIMIT)

    @pytest.mark.parametrize("name", ["", "bafkrei", "../secret", "b" + "a" * 58, "/etc/passwd", "x\0y"])
    def test_names_that_are_no_cids_are_refused(self, cas: Cas, name: str) -> None:
        with pytest.raises(CidError):
            cas.get(name, LIMIT)
        with pytest.raises(CidError):
            cas.has(name)

    @pytest.mark.parametrize("other", [b"", b"good byteS", b"good bytes!", b"good byte", b"x" * 5000])
    def test_damage_is_found_and_named(self, cas: Cas, other: bytes) -> None:
        cid = cas.put(b"good bytes")
        self.damage(cas, cid, other)
        with pytest.raises(CasDamagedError, match=cid):
            cas.get(cid, LIMIT)

    def test_a_lost_file_is_not_found(self, cas: Cas) -> None:
        cid = cas.put(b"good bytes")
        self.damage(cas, cid, None)
        with pytest.raises(CasNotFoundError):
            cas.get(cid, LIMIT)

    def test_putting_the_bytes_again_repairs_a_damaged_file(self, cas: Cas) -> None:
        cid = cas.put(b"good bytes")
        self.damage(cas, cid, b"bad bytes!")
        cas.put(b"good bytes")
        assert cas.get(cid, LIMIT) == b"good bytes"

    def test_a_whole_file_beyond_the_limit_is_too_large_and_not_damaged(self, cas: Cas) -> None:
        cid = cas.put(b"x" * (LIMIT + 1))
        with pytest.raises(CasTooLargeError, match=cid):
            cas.get(cid, LIMIT)
        assert len(cas.get(cid, LIMIT + 1)) == LIMIT + 1


Damage = Callable[[bytes], bytes | None]
"""What decay makes of the bytes of a file; None where it is gone."""


def flip(data: bytes) -> bytes:
    """One bit in the middle is the other way round."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def truncate(data: bytes) -> bytes:
    """The last byte is gone."""
    return data[:-1]


def vanish(_: bytes) -> None:
    """The file is gone."""


class FaultyCas:
    """Storage that behaves like *base* until told otherwise; its faults are what disks and networks do.

    :meth:`fail_next` and :meth:`fail_after` make calls raise :class:`CasUnavailableError`; ``lose_writes`` confirms
    writes that never happen. :meth:`spoil` lets a file decay, with :func:`flip`, :func:`truncate` or :func:`vanish`.
    """

    def __init__(self, base: Cas) -> None:
        self._base = base
        self._successes = 0
        self._failures: float = 0
        self._spoiled: dict[str, Damage] = {}
        self.lose_writes = False

    def spoil(self, cid: str, damage: Damage) -> None:
        """Let *damage* happen to the bytes of *cid* whenever they are read, until they are put again."""
        self._spoiled[cid] = damage

    def fail_next(self, calls: int = 1) -> None:
        """Let the next *calls* calls fail, and those after them succeed."""
        self._successes, self._failures = 0, calls

    def fail_after(self, calls: int) -> None:
        """Let the next *calls* calls succeed, and all after them fail."""
        self._successes, self._failures = calls, math.inf

    def put(self, data: bytes, form: CidForm = CidForm.RAW) -> str:
        return self.put_many([data], form)[0]

    def put_many(self, files: Iterable[bytes], form: CidForm = CidForm.RAW) -> Sequence[str]:
        self._trip()
        if self.lose_writes:
            return [cid_of(data, form) for data in files]
        cids = self._base.put_many(files, form)
        for cid in cids:
            self._spoiled.pop(cid, None)
        return cids

    def get(self, cid: str, limit: int) -> bytes:
        self._trip()
        data = self._base.get(cid, limit)
        spoiled = self._spoiled.get(cid, bytes)(data)
        if spoiled is None:
            raise not_found(cid)
        return checked(cid, spoiled, limit)

    def has(self, cid: str) -> bool:
        self._trip()
        return self._base.has(cid) and self._spoiled.get(cid) is not vanish

    def cids(self) -> Iterator[str]:
        self._trip()
        return self._base.cids()

    def _trip(self) -> None:
        if self._successes:
            self._successes -= 1
        elif self._failures:
            self._failures -= 1
            raise CasUnavailableError
