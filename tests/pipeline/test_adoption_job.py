"""Adoption on Spark: what it records is what threads record."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.mill.adoption.adopter import Adopter, ReadExtent
from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.adoption.checksum_files import parse_checksums
from millstream.mill.manifest import Manifest
from millstream.pipeline.jobs import adoption
from millstream.pipeline.jobs.adoption import SparkReader
from millstream.stores import Store, folder_url, open_provider
from millstream.stores.s3 import parse_address
from millstream.testing.programs import LocalServerMissingError
from millstream.testing.s3 import S3Server
from millstream.testing.services import private
from millstream.testing.swift import ENVIRONMENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SPACE = "photos"


class Recorded(NamedTuple):
    """Everything that an adoption leaves behind."""

    summary: dict[str, int]
    items: list[Any]
    findings: list[Any]
    manifest: list[Any]


class Record:
    """A catalog and a manifest of their own for the source *store*, in the database at *path*."""

    def __init__(self, store: Store, path: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{path}")
        self.clock = VirtualClock()
        self.target = AdoptionTarget(store, "here", AdoptionCatalog(engine), Manifest(engine), self.clock)

    def adopt(self, reader: SparkReader | None, reading: ReadExtent, listed: str) -> Recorded:
        """Adopt an hour after what was done before; what is left behind then."""
        self.clock.advance(3600)
        checksums = parse_checksums(listed.encode(), "LIST") if listed else None
        found = Adopter(self.target, reader=reader).adopt(SPACE, reading=reading, checksums=checksums)
        catalog, manifest = self.target.catalog, self.target.manifest
        return Recorded(
            msgspec.structs.asdict(found),
            list(catalog.scan("here", SPACE)),
            list(catalog.findings("here", SPACE)),
            list(manifest.scan("here", SPACE)),
        )


@pytest.fixture
def compare(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorded]:
    """Adopts a source with threads and on Spark, and expects the same of both."""
    monkeypatch.setattr(adoption, "PORTION", 4)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    records = dict[str, Record]()

    def compared(url: str, reading: ReadExtent = ReadExtent.SHARE, listed: str = "") -> Recorded:
        left = []
        for name, reader in (("threads", None), ("spark", SparkReader(spark, url))):
            if name not in records:
                records[name] = Record(open_provider(url), tmp_path / f"{name}.db")
            left.append(records[name].adopt(reader, reading, listed))
        assert left[0] == left[1]
        return left[1]

    return compared


def test_a_folder_is_adopted_on_spark_as_with_threads(tmp_path: Path, compare: Callable[..., Recorded]) -> None:
    root = tmp_path / SPACE
    (root / "empty").mkdir(parents=True)
    for number in range(9):
        (root / f"{number}.jpg").write_bytes(b"photo %d" % number)
    (root / "link").symlink_to("1.jpg")
    os.mkfifo(root / "pipe")
    url = folder_url(root, SPACE)
    wrong = f"{hashlib.sha256(b'other').hexdigest()}  3.jpg\n{hashlib.sha1(b'photo 4').hexdigest()}  4.jpg\n"
    first = compare(url, listed=wrong)
    assert (first.summary["added"], len(first.manifest)) == (10, 10)
    assert {(one.content_id, one.kind) for one in first.findings} == {
        ("3.jpg", "checksum mismatch"), ("pipe", "not supported"),
    }  # fmt: skip
    before = (root / "5.jpg").stat()
    (root / "5.jpg").write_bytes(b"phXto 5")
    os.utime(root / "5.jpg", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "6.jpg").write_bytes(b"edited")
    (root / "7.jpg").rename(root / "renamed.jpg")
    (root / "8.jpg").unlink()
    then = compare(url, ReadExtent.ALL)
    counted = {name: then.summary[name] for name in ("added", "changed", "vanished", "moved", "suspected")}
    assert counted == {"added": 0, "changed": 1, "vanished": 2, "moved": 1, "suspected": 1}


def test_a_bucket_is_adopted_on_spark_as_with_threads(moto: S3Server, compare: Callable[..., Recorded]) -> None:
    address = msgspec.structs.replace(parse_address(moto.new_url()), space=SPACE)
    for number in range(6):
        moto.client.put_object(
            Bucket=address.bucket, Key=f"{address.prefix}{number}.jpg", Body=b"photo %d" % number,
            ContentType="image/jpeg", Metadata={"by": "me"}, ChecksumAlgorithm="SHA256",
        )  # fmt: skip
    first = compare(address.url)
    assert [one.origin for one in first.items] == ["provider"] * 6
    moto.client.put_object(Bucket=address.bucket, Key=f"{address.prefix}1.jpg", Body=b"edited")
    assert compare(address.url).summary["changed"] == 1


def test_a_bucket_is_adopted_on_a_cluster_as_with_threads(
    tmp_path: Path, swift: S3Server, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size != "long":
        pytest.skip("a cluster is six Java machines; at the long size only")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)  # workers find them in the environment that they inherit
    address = msgspec.structs.replace(parse_address(swift.new_url()), space=SPACE)
    for number in range(300):
        key = f"{address.prefix}{number % 7}/50% {number} ä.jpg"
        swift.client.put_object(Bucket=address.bucket, Key=key, Body=b"photo" * number)
    (tmp_path / "millstream.toml").write_text(f'[stores.here]\nurl = "{address.url}"\n', "utf-8")
    command = [sys.executable, "-m", "millstream", "pipeline", "inventory", "--adopt", "--data", tmp_path, "--json"]
    try:
        with private("spark") as cluster:
            done = subprocess.run(
                [*command, "--master", cluster.url], capture_output=True, text=True, check=False, timeout=500
            )
    except LocalServerMissingError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-4000:]
    catalog = AdoptionCatalog(sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}"))
    record = Record(open_provider(address.url), tmp_path / "threads.db")
    threads = record.adopt(None, ReadExtent.SHARE, "")
    assert json.loads(done.stdout.splitlines()[-1])["adoption"] == threads.summary
    facts = [(one.content_id, one.version, one.sha256, one.size, one.properties) for one in threads.items]
    on_cluster = catalog.scan("here", SPACE)
    assert [(one.content_id, one.version, one.sha256, one.size, one.properties) for one in on_cluster] == facts
    assert len(facts) == 300
