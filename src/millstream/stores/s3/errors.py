"""The meaning of the errors of boto3, and of the codes of S3, for users of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from millstream.stores.protocol import (
    AccessDeniedError,
    ContentIdTooLongError,
    ContentTooLargeError,
    ItemNotFoundError,
    StoreCredentialsError,
    StoreError,
    StoreInputError,
    StoreRefusedError,
    StoreUnavailableError,
    UnreadableError,
)


class ConditionFailedError(StoreError):
    """The object is not in the state that the call asked for (If-Match, If-None-Match)."""


class EmptyRangeError(StoreError):
    """The range begins at or after the end of the object."""


class UploadGoneError(StoreError):
    """The multipart upload was completed or aborted already."""


class BucketMissingError(StoreError):
    """There is no such bucket."""


class ArchivedError(StoreRefusedError, UnreadableError):
    """The object is in an archive storage class: restore it before it is read or changed."""


class NoReplyError(StoreUnavailableError):
    """The server did not answer in time; it may still do what it was asked for."""


class S3MissingError(StoreInputError):
    """S3 needs another package: pip install 'millstream[s3]'"""


_MEANINGS: dict[str, type[StoreError]] = {
    "404": ItemNotFoundError,
    "NoSuchKey": ItemNotFoundError,
    "NotFound": ItemNotFoundError,
    "NoSuchBucket": BucketMissingError,
    "NoSuchUpload": UploadGoneError,
    "403": AccessDeniedError,
    "AccessDenied": AccessDeniedError,
    "412": ConditionFailedError,
    "PreconditionFailed": ConditionFailedError,
    "416": EmptyRangeError,
    "InvalidRange": EmptyRangeError,
    "InvalidObjectState": ArchivedError,
    "MethodNotAllowed": StoreRefusedError,
    "ObjectLocked": StoreRefusedError,
    "InvalidBucketName": StoreInputError,
    "KeyTooLongError": ContentIdTooLongError,
    "EntityTooLarge": ContentTooLargeError,
    "MetadataTooLarge": StoreInputError,
}

TRANSIENT = {
    "BadDigest",  # damaged on the way: the next try may arrive whole
    "ConditionalRequestConflict",
    "OperationAborted",
    "InternalError",
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "XAmzContentSHA256Mismatch",
}
"""The codes of errors that may be gone when the same call is made again."""

_ADVICE = {
    "301": "name the region of the bucket with region=NAME in the URL of the store",
    "400": "check whether the credentials have expired, and the region in the URL of the store",
    "403": "check the credentials, and the rights of their user",
    "AccessDenied": "grant the user of these credentials the right to this operation",
    "ExpiredToken": "get new credentials",
    "InvalidAccessKeyId": "check which credentials are used",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "SignatureDoesNotMatch": "check the secret key, which does not belong to the access key",
    "NoSuchBucket": "create the bucket, or correct the URL",
    "NotImplemented": "this server does not support the operation",
}


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn an error of boto3 inside the block into a :class:`StoreError` that says what was being done."""
    from botocore import exceptions as boto
    from urllib3.exceptions import HTTPError

    try:
        yield
    except boto.ClientError as error:
        raise _meaning(doing, error.response) from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound) as error:
        advice = "add profile=NAME or credentials=NAME to the store's URL"
        raise StoreCredentialsError(f"{doing} failed: {error}; {advice}") from error
    except (boto.ParamValidationError, boto.InvalidRegionError, boto.NoRegionError) as error:
        raise StoreInputError(f"{doing} failed: {error}") from error
    except boto.ReadTimeoutError as error:
        raise NoReplyError(f"{doing} failed: {error}; try again") from error
    except (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError, HTTPError, OSError) as error:
        raise StoreUnavailableError(f"{doing} failed: {error}; try again") from error
    except boto.BotoCoreError as error:
        raise StoreError(f"{doing} failed: {error}") from error


def _meaning(doing: str, response: Any) -> StoreError:
    code = str(response.get("Error", {}).get("Code", ""))
    text = response.get("Error", {}).get("Message") or "(no reason given)"
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    advice = _ADVICE.get(code)
    message = f"{doing} failed: {code}: {text.rstrip('.')}" + (f"; {advice}" if advice else "")
    if code in _MEANINGS:
        return _MEANINGS[code](message)
    final = code == "NotImplemented" or status == 501
    if code in TRANSIENT or status == 429 or (status >= 500 and not final):
        return StoreUnavailableError(f"{message}; try again")
    return StoreError(message)
