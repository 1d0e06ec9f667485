"""URLs of S3 stores, and how their secrets stay out of sight."""

from __future__ import annotations

import pytest

from millstream.log import LogInputError
from millstream.stores import MountedStore, StoreInputError, open_provider
from millstream.stores.s3 import S3Address, S3Store, connect, parse_address
from millstream.stores.s3.log_bucket import open_log_bucket


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://bucket", S3Address("bucket")),
        ("s3://bucket/", S3Address("bucket")),
        ("s3://bucket/a%20b/c/", S3Address("bucket", "a b/c/")),
        (
            "s3://b/p?endpoint=https://host:8080&region=eu-1&profile=mill",
            S3Address("b", "p/", "https://host:8080", "eu-1", "mill"),
        ),
        ("s3://b?credentials=ARCHIVE", S3Address("b", credentials="ARCHIVE")),
    ],
)
def test_an_address_is_read_and_written(url: str, address: S3Address) -> None:
    assert parse_address(url) == address
    assert parse_address(address.url) == address
    assert open_provider(url).url == address.url


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///folder",
        "s3://bucket#a",
        "s3://bucket:80/a",
        "s3://bucket?region=",
        "s3://bucket?secret_key=hunter2",
        "s3://bucket?region=a&region=b",
        "s3://bucket?profile=a&credentials=b",
        "s3://bucket?endpoint=host:8080",
        "s3://bucket?endpoint=https://key:hunter2@host",
        "s3://key:hunter2@bucket",
    ],
)
def test_a_url_that_names_no_bucket_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(StoreInputError) as caught:
        open_provider(url)
    assert "hunter2" not in str(caught.value)


def test_an_s3_store_has_mounts_as_any_other() -> None:
    url = "s3://bucket/a?endpoint=http://host&region=x&mount=cas:s3://other%3Fendpoint=http://host"
    store = open_provider(url)
    assert isinstance(store, MountedStore)
    assert store.url == url.replace("other%3Fendpoint=http://host", "other%3Fendpoint%3Dhttp://host")
    assert open_provider(store.url).url == store.url


def test_opening_a_store_asks_nobody() -> None:
    assert isinstance(open_provider("s3://bucket?endpoint=http://127.0.0.1:9"), S3Store)


def test_missing_credentials_are_named_by_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_ACCESS_KEY_ID", "hunter2")
    with pytest.raises(StoreInputError, match="MILL_SECRET_ACCESS_KEY") as caught:
        open_provider("s3://bucket?endpoint=http://127.0.0.1:9&credentials=MILL").spaces()
    assert "hunter2" not in str(caught.value)


def test_a_missing_profile_is_an_error_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(StoreInputError, match="profile"):
        connect(parse_address("s3://bucket?profile=nobody"))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://b?profile=x&credentials=y", "^invalid S3 URL 's3://b': remove either"),
        ("s3://b?space=x", "^a log store has no option 'space': remove it from the URL of s3://b"),
    ],
)
def test_the_url_of_a_log_store_that_is_refused_is_called_invalid_once(url: str, text: str) -> None:
    with pytest.raises(LogInputError, match=text):
        open_log_bucket(url)
