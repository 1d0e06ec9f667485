"""``millstream protect`` with a bucket that other programs wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.stores.s3 import parse_address
from millstream.testing.s3 import S3Server


def test_a_bucket_is_copied_to_a_folder_and_another_bucket(
    moto: S3Server, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source, copy = moto.new_url(), moto.new_url()
    prefix = parse_address(source).prefix

    def put(key: str, data: bytes, **options: Any) -> None:
        moto.client.put_object(Bucket=moto.address.bucket, Key=prefix + key, Body=data, **options)

    def protect(*arguments: str) -> tuple[int, dict[str, Any]]:
        to = ["--to", str(tmp_path / "disk"), "--to", copy, "--space", "photos"]
        code = run(["protect", source, *to, "--data", str(tmp_path / "node"), "--json", *arguments])
        return code, json.loads(capsysbinary.readouterr().out.splitlines()[-1])

    for number in range(5):
        put(f"2013/{number}.jpg", b"photo %d" % number, ContentType="image/jpeg", Metadata={"by": "me"})
    code, report = protect()
    assert (code, report["items"], [one["verified"] for one in report["copies"]]) == (0, 5, [5, 5])
    assert (tmp_path / "disk" / "photos" / "2013" / "1.jpg").read_bytes() == b"photo 1"
    assert protect()[1]["adoption"]["read"] == 0
    put("2013/1.jpg", b"edited")
    moto.client.delete_object(Bucket=moto.address.bucket, Key=f"{prefix}2013/2.jpg")
    code, report = protect("--read", "all")
    assert (code, report["adoption"]["changed"], report["vanished"]) == (5, 1, 1)
    assert (tmp_path / "disk" / "photos" / "2013" / "1.jpg").read_bytes() == b"edited"


def test_objects_of_odd_names_that_were_renamed_are_recognised(
    moto: S3Server, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source, bucket = moto.new_url(), moto.address.bucket
    prefix = parse_address(source).prefix
    protect = ["protect", source, "--to", str(tmp_path / "disk"), "--space", "photos", "--data", str(tmp_path / "node")]
    renamed = {
        "50% ä.jpg": "deep/er/50%25.jpg", ".hidden": "shown", "a//b": "a/b", "marker": "folder/", "tab\t": "new line",
        "cr\rd": "e\x01f", "separator\u2028": "\x7f\u202e",
        "equal 1": "also equal", "equal 2": "equal again", "empty": " x ", "+": "&?#", "x": "x../.y",
    }  # fmt: skip
    content = {name: name.split()[0].encode() for name in renamed} | {"empty": b""}
    for name, data in {**content, "other": b"other"}.items():
        moto.client.put_object(Bucket=bucket, Key=prefix + name, Body=data, Metadata={"by": "me"})
    assert run([*protect, "--json"]) == 0
    for before, after in renamed.items():
        moto.client.put_object(Bucket=bucket, Key=prefix + after, Body=content[before], Metadata={"by": "you"})
        moto.client.delete_object(Bucket=bucket, Key=prefix + before)
    capsysbinary.readouterr()
    code = run([*protect, "--json"])
    report = json.loads(capsysbinary.readouterr().out.splitlines()[-1])
    assert (report["adoption"]["moved"], report["vanished"], code) == (len(renamed), 0, 0)
    assert (report["items"], report["copies"][0]["verified"]) == (13, 13)


@pytest.mark.smoke
def test_objects_whose_names_have_line_breaks_are_copied_and_their_renames_recognised(
    swift: S3Server, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """On a real server: the one that stands for it elsewhere has no such names."""
    source, copy = swift.new_url(), swift.new_url()
    bucket, prefix = swift.address.bucket, parse_address(source).prefix
    to = ["--to", str(tmp_path / "disk"), "--to", copy, "--space", "photos"]

    def protect() -> tuple[int, dict[str, Any]]:
        code = run(["protect", source, *to, "--data", str(tmp_path / "node"), "--json"])
        return code, json.loads(capsysbinary.readouterr().out.splitlines()[-1])

    names = ["a\nb", "a\r\nb", "\n", "tab\t\x1b[2J", "\x7f"]
    for number, name in enumerate(names):
        swift.client.put_object(Bucket=bucket, Key=prefix + name, Body=b"grain %d" % number)
    code, report = protect()
    assert (code, report["items"], [one["verified"] for one in report["copies"]]) == (0, 5, [5, 5])
    swift.client.put_object(Bucket=bucket, Key=f"{prefix}new\nname", Body=b"grain 0")
    swift.client.delete_object(Bucket=bucket, Key=f"{prefix}a\nb")
    code, report = protect()
    assert (code, report["adoption"]["moved"], [one["verified"] for one in report["copies"]]) == (0, 1, [5, 5])


def test_checksums_of_the_provider_vouch_for_what_was_read(
    moto: S3Server, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = moto.new_url()
    prefix = parse_address(source).prefix
    for algorithm in ("CRC32", "SHA1", "SHA256"):
        key = f"{prefix}{algorithm}"
        moto.client.put_object(
            Bucket=moto.address.bucket, Key=key, Body=b"grain", ChecksumAlgorithm=algorithm,  # type: ignore[arg-type]
        )  # fmt: skip
    to = ["--to", str(tmp_path / "disk"), "--space", "photos", "--data", str(tmp_path / "node"), "--json"]
    assert run(["protect", source, *to]) == 0
    report = json.loads(capsysbinary.readouterr().out.splitlines()[-1])
    assert (report["items"], report["adopted_only"]) == (3, 0)
    copied = tmp_path / "disk" / "photos" / "SHA1"
    assert hashlib.sha256(copied.read_bytes()).digest() == hashlib.sha256(b"grain").digest()


@pytest.mark.parametrize("copy", ["", "photos", "photos/deeper"])
def test_a_copy_that_would_lie_in_its_source_is_refused(moto: S3Server, tmp_path: Path, copy: str) -> None:
    source = moto.new_url()
    base, question, query = source.partition("?")
    moto.client.put_object(Bucket=moto.address.bucket, Key=f"{parse_address(source).prefix}photos/a", Body=b"a")
    arguments = ["protect", f"{base.rstrip('/')}/photos{question}{query}", "--data", str(tmp_path / "node")]
    assert run([*arguments, "--to", f"{base.rstrip('/')}/{copy}{question}{query}"]) == 2
    assert not (tmp_path / "node").exists()
