"""What S3 answers, in the words of stores: what may be tried again, and what a person has to mend."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto

from millstream.stores import (
    AccessDeniedError,
    ContentIdTooLongError,
    ContentTooLargeError,
    ItemNotFoundError,
    StoreCredentialsError,
    StoreError,
    StoreInputError,
    StoreUnavailableError,
)
from millstream.stores.s3.errors import ArchivedError, BucketMissingError, ConditionFailedError, translated


def answer(code: str, status: int) -> boto.ClientError:
    response = {"Error": {"Code": code, "Message": "so."}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(response, "PutObject")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("NoSuchKey", 404), ItemNotFoundError),
        (answer("404", 404), ItemNotFoundError),
        (answer("NoSuchBucket", 404), BucketMissingError),
        (answer("PreconditionFailed", 412), ConditionFailedError),
        (answer("InvalidObjectState", 403), ArchivedError),
        (answer("KeyTooLongError", 400), ContentIdTooLongError),
        (answer("EntityTooLarge", 400), ContentTooLargeError),
        (answer("NotImplemented", 501), StoreError),
        (answer("AccessDenied", 403), AccessDeniedError),
        (answer("SlowDown", 503), StoreUnavailableError),
        (answer("500", 500), StoreUnavailableError),
        (answer("TooManyRequests", 429), StoreUnavailableError),
        (answer("BadDigest", 400), StoreUnavailableError),
        (boto.EndpointConnectionError(endpoint_url="http://host"), StoreUnavailableError),
        (boto.ConnectTimeoutError(endpoint_url="http://host"), StoreUnavailableError),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnavailableError),
        (boto.ResponseStreamingError(error="cut"), StoreUnavailableError),
        (ConnectionResetError("reset"), StoreUnavailableError),
        (boto.NoCredentialsError(), StoreCredentialsError),
        (boto.ParamValidationError(report="no bucket"), StoreInputError),
        (boto.UnknownServiceError(service_name="s3", known_service_names="none"), StoreError),
    ],
    ids=repr,
)
def test_an_answer_has_one_meaning(error: Exception, kind: type[StoreError]) -> None:
    with pytest.raises(StoreError, match="putting failed") as caught, translated("putting"):
        raise error
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error
    assert caught.value.transient == (kind is StoreUnavailableError)


@pytest.mark.parametrize(
    ("code", "status", "advice"),
    [
        ("301", 301, "region=NAME"),
        ("400", 400, "credentials have expired"),
        ("ExpiredToken", 400, "get new credentials"),
        ("RequestTimeTooSkewed", 403, "set the clock"),
    ],
)
def test_an_error_says_what_to_do(code: str, status: int, advice: str) -> None:
    with pytest.raises(StoreError, match=advice), translated("putting"):
        raise answer(code, status)
