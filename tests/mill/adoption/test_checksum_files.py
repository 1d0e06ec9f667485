"""Lists of checksums that people have: what is read of each form, and what is refused."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from millstream.mill.adoption.checksum_files import ChecksumFileError, parse_checksums, read_checksums

MD5, SHA1, SHA256 = (hashlib.new(name, b"grain").hexdigest() for name in ("md5", "sha1", "sha256"))


def parsed(text: str, root: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    listed = parse_checksums(text.encode(), "LIST", root=root)
    return {name: [(one.algorithm, one.value) for one in listed.get(name)] for name in listed}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"{SHA256}  a/b.txt", "a/b.txt"),
        (f"{SHA256} *a/b.txt", "a/b.txt"),
        (f"{SHA256.upper()}  ./a/b.txt", "a/b.txt"),
        (f"SHA256 (a/b (1).txt) = {SHA256}", "a/b (1).txt"),
        (f"SHA2-256(a.txt)= {SHA256}".replace("SHA2-256", "SHA256"), "a.txt"),
        (f"\\{SHA256}  new\\nline\\\\", "new\nline\\"),
        (f"\\SHA256 (new\\nline) = {SHA256}", "new\nline"),
        (f"{SHA256}  a\\n", "a\\n"),
    ],
)
def test_each_form_of_a_line_is_read(line: str, name: str) -> None:
    assert parsed(line) == {name: [("sha256", SHA256)]}


def test_what_sha256sum_writes_for_odd_names_is_read(tmp_path: Path) -> None:
    names = ["plain", "two\nlines", "back\\slash", " space", "50%", "tab\t", "carriage\rreturn"]
    for name in names:
        (tmp_path / name).write_bytes(b"grain")
    for option in ((), ("--tag",)):
        printed = subprocess.run(["sha256sum", *option, *names], cwd=tmp_path, capture_output=True, check=True).stdout
        listed = parse_checksums(printed, "SHA256SUMS")
        assert set(listed) == set(names)
        assert all(listed.get(name)[0].value == SHA256 for name in names)


def test_md5deep_rclone_and_comments_are_read_and_what_has_no_checksum_is_left_out() -> None:
    text = f"# made today\n\n{MD5}  a\n{' ' * 32}  no checksum\nUNSUPPORTED  b\n{SHA1}  a\r\n"
    assert parsed(text) == {"a": [("md5", MD5), ("sha1", SHA1)]}


def test_hashdeep_is_read_by_its_heading() -> None:
    text = f"%%%% HASHDEEP-1.0\n%%%% size,md5,sha256,filename\n## Invoked from: /\n5,{MD5},{SHA256},a, with comma\n"
    assert parsed(text) == {"a, with comma": [("md5", MD5), ("sha256", SHA256)]}


def test_absolute_names_are_those_below_the_source(tmp_path: Path) -> None:
    assert parsed(f"{MD5}  {tmp_path}/a/b", tmp_path) == {"a/b": [("md5", MD5)]}
    with pytest.raises(ChecksumFileError, match="is outside the source"):
        parsed(f"{MD5}  /elsewhere/b", tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no checksum at all", "line 1: expected a checksum .*, not 'no checksum at all'"),
        (f"%%%% size,md5,filename\n5,{MD5}", r"line 2 has 2 values, but .* 3 columns \(size, md5, filename\)"),
        (f"{MD5}  a\n{MD5[:-1]}  b", "line 2"),
        (f"SHA1 (a) = {MD5}", r"unknown checksum algorithm, or .* do not have 32 digits; .* sha1 \(40\)"),
        (f"{MD5}  ../a", "is outside the source"),
        (f"{MD5}  a\n{MD5[::-1]}  a", "lines 1 and 2 have different md5 checksums of 'a'"),
        ("", "contains no checksums"),
    ],
)
def test_what_is_no_list_is_refused_by_its_line(text: str, reason: str) -> None:
    with pytest.raises(ChecksumFileError, match=reason):
        parsed(text)


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChecksumFileError, match=r"missing\.sha256"):
        read_checksums(tmp_path / "missing.sha256")
