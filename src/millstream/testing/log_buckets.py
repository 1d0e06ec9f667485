"""The conformance suite of the buckets in which logs are kept.

Inherit the class in a test module and give your class the fixture it asks for: a bucket that nobody has used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.log.backends.objects.bucket import Bucket


class BucketConformance:
    """What a :class:`~millstream.log.backends.objects.bucket.Bucket` must do. Needs the fixture ``bucket``.

    ``creates_atomically`` says that of many that create a name at once one wins. Logs are only kept where it does.
    """

    creates_atomically = True

    @pytest.fixture
    def bucket(self) -> Bucket:
        """A bucket that nobody has used."""
        raise LookupError("a conformance test requires the fixture bucket: define it in your test class")

    def test_a_name_is_created_once(self, bucket: Bucket) -> None:
        data = b"first"
        assert bucket.create("a/1", data)
        assert not bucket.create("a/1", data)
        assert not bucket.create("a/1", b"second")
        assert bucket.get("a/1") == data

    def test_what_was_put_replaces_what_was_there(self, bucket: Bucket) -> None:
        bucket.put("lease", b"one")
        bucket.put("lease", b"two")
        assert bucket.get("lease") == b"two"
        assert not bucket.create("lease", b"three")

    def test_a_part_of_an_object_is_read(self, bucket: Bucket) -> None:
        assert bucket.create("a", b"0123456789")
        assert bucket.get("a", 2, 3) == b"234"
        assert bucket.get("a", 7) == b"789"
        assert bucket.get("a", 8, 100) == b"89"
        assert bucket.get("a", 10, 5) == b""
        assert bucket.get("b", 1, 2) is None
        assert (bucket.size("a"), bucket.size("b")) == (10, None)
        assert bucket.get("b") is None

    def test_names_are_listed_in_the_order_of_their_bytes(self, bucket: Bucket) -> None:
        names = [f"commits/{number:04}" for number in range(30)]
        for name in [*reversed(names), "commit", "others/1", "commits-2"]:
            assert bucket.create(name, b"")
        assert list(bucket.list("commits/")) == names
        assert list(bucket.list("commits/", "commits/0007", 5)) == names[8:13]
        assert list(bucket.list("commits/", names[-1])) == []
        assert list(bucket.list("commits/", "commits/0003x", 1)) == names[4:5]
        assert list(bucket.list("none/")) == []

    def test_names_with_signs_are_kept_as_they_are(self, bucket: Bucket) -> None:
        name = "logs/system%3Atopic+1 =&ü"
        assert bucket.create(name, b"x")
        assert list(bucket.list("logs/")) == [name]
        assert bucket.get(name) == b"x"
        bucket.delete([name])
        assert bucket.get(name) is None

    def test_deleting_what_is_not_there_is_no_error(self, bucket: Bucket) -> None:
        assert bucket.create("a", b"1")
        assert bucket.create("b", b"2")
        bucket.delete(["a", "none"])
        bucket.delete([])
        assert (bucket.get("a"), bucket.get("b")) == (None, b"2")
        assert bucket.create("a", b"again")

    def test_the_server_has_a_clock_that_never_goes_back(self, bucket: Bucket) -> None:
        times = [bucket.server_time() for _ in range(20)]
        assert times == sorted(times)
        assert abs(times[0] - SystemClock().now()) < 3600 * MICROSECONDS

    def test_threads_may_share_it(self, bucket: Bucket) -> None:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda number: bucket.create(f"x/{number:02}", b"%d" % number), range(24)))
        assert all(made)
        assert len(bucket.list("x/")) == 24

    def test_of_many_that_create_a_name_at_once_one_wins(self, bucket: Bucket) -> None:
        for name in ("x/1", "x/2", "x/3"):
            bodies, together = [b"%d" % number for number in range(8)], Barrier(8, timeout=60)

            def create(body: bytes, name: str = name, together: Barrier = together) -> bool:
                together.wait()
                return bucket.create(name, body)

            with ThreadPoolExecutor(8) as pool:
                made = list(pool.map(create, bodies))
            assert sum(made) == 1 or (any(made) and not self.creates_atomically)
            assert bucket.get(name) in [body for body, won in zip(bodies, made, strict=True) if won]
