"""The data of the comparison of ``millstream protect`` with rclone, and the changes that are made in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from millstream.testing.s3 import S3Server
from millstream_peers.protect import SPACE, Case, change, make_files, upload


def _read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}


def test_the_files_are_the_same_each_time_and_some_are_empty(tmp_path: Path) -> None:
    sizes = [make_files(tmp_path / name, 150) for name in ("one", "two")]
    assert _read(tmp_path / "one") == _read(tmp_path / "two")
    assert sizes[0] == sizes[1] == sum(map(len, _read(tmp_path / "one").values()))
    assert b"" in _read(tmp_path / "one").values()


def test_each_change_falls_on_files_of_its_own(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    make_files(source, 150)
    shutil.copytree(source, copy / SPACE)
    before = _read(source)
    changed = change(Case("folder", str(source), str(source), source, (str(copy),), (str(copy),)))
    after, copied = _read(source), _read(copy / SPACE)
    assert set(changed.values()) == {20}
    assert (len(before.keys() - after.keys()), len(after.keys() - before.keys())) == (40, 20)
    assert sum(before[name] != after[name] for name in before.keys() & after.keys()) == 40
    assert sum(before[name] != copied[name] for name in before) == 20


def test_a_bucket_gets_the_files_of_a_folder_without_rclone(moto: S3Server, tmp_path: Path) -> None:
    make_files(tmp_path, 20)
    bucket, client = "photos-source", moto.client
    upload(tmp_path, client, bucket)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 20
    (tmp_path / "03" / "00003.jpg").rename(tmp_path / "03" / "moved.jpg")
    (tmp_path / "04" / "00004.jpg").write_bytes(b"edited")
    upload(tmp_path, client, bucket)
    objects = {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in _read(tmp_path)}
    assert objects == _read(tmp_path)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 20
