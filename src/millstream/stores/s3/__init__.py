"""Storage on S3 and on servers that speak its protocol (Swift, Ceph, MinIO …), through boto3.

All spaces of a store lie in one bucket, as prefixes: ``s3://BUCKET/PREFIX`` keeps the item ``a/b`` of the space
``photos`` under the key ``PREFIX/photos/a/b``. What is kept in user metadata, and how, is in
``docs/formats/s3-store.md``. A bucket that other programs wrote, in any layout, is read as a :class:`BucketStore`.
"""

from millstream.stores.s3.address import S3Address, parse_address
from millstream.stores.s3.bucket import BucketStore
from millstream.stores.s3.client import connect
from millstream.stores.s3.limits import S3Limits
from millstream.stores.s3.store import S3Store

__all__ = ["BucketStore", "S3Address", "S3Limits", "S3Store", "connect", "parse_address"]
