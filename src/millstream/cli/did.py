"""``millstream did``: requests for decentralized identifiers, made and resolved with files alone."""

from __future__ import annotations

import os
import secrets
import sys
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import Command, data_options, print_json, setting_origins
from millstream.cli.examples import example
from millstream.core.decoding import prepared
from millstream.core.durable import sync_folder
from millstream.core.errors import InputError, NotFoundError
from millstream.core.plain_reasons import field_reason
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.sidetree import Operation, PrivateKey, Profile

MAX_OPERATIONS_BYTES = 64 << 20


class DidInputError(InputError):
    """A file on the command line cannot be used."""


class DidUnknownError(NotFoundError):
    """The DID is unknown."""


profile_option = click.option(
    "--profile",
    "profile_name",
    type=click.Choice(["sidetree", "orb"]),
    default="sidetree",
    show_default=True,
    help="Protocol profile of the network.",
)
patches_option = click.option(
    "--patches",
    type=click.File("rb"),
    help="JSON file with a Sidetree patch or a list of patches (default: an empty document).",
)


def key_option(name: str, text: str) -> Callable[[Command], Command]:
    """An option that names a key file."""
    return click.option(name, required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=text)


@click.group(cls=SummaryGroup)
def did() -> None:
    """Decentralized identifiers (Sidetree v1.0): requests are printed as JSON, keys stay in files.

    \b
    millstream did key update.jwk; millstream did key recovery.jwk
    millstream did create --update-key update.jwk --recovery-key recovery.jwk > create.json
    millstream did name create.json
    """


@example("millstream did key update.json")
@did.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--curve",
    type=click.Choice(["secp256k1", "Ed25519"]),
    default="secp256k1",
    show_default=True,
    help="Curve of the key.",
)
def key(file: Path, curve: str) -> None:
    """Create a private key in FILE, readable only by its owner. Existing files are never replaced.

    Both the file and the printed public key are JWKs (RFC 7517).
    """
    from millstream.anchoring.sidetree import PrivateKey

    made = PrivateKey.from_secret(curve, secrets.token_bytes(32))
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise DidInputError(f"{file} exists already, and a key is never overwritten: choose another file") from error
    with os.fdopen(handle, "wb") as out:
        out.write(msgspec.json.encode(made.jwk) + b"\n")
        out.flush()
        os.fsync(out.fileno())
    sync_folder(file.parent)  # the key is needed later: its name must outlive a power failure, too
    print_json(made.public)


@example("millstream did create --update-key update.json --recovery-key recovery.json")
@did.command()
@key_option(
    "--update-key", "File with the private key that will sign the first update (JWK, see `millstream did key`)."
)
@key_option("--recovery-key", "File with the private key that can recover or deactivate the DID (a JWK).")
@patches_option
@click.option(
    "--type", "kind", default="", metavar="TEXT", help="Type of the DID, at most 4 characters (default: none)."
)
@profile_option
def create(update_key: Path, recovery_key: Path, patches: BinaryIO | None, kind: str, profile_name: str) -> None:
    """Print the request that creates a DID."""
    from millstream.anchoring.sidetree import create_request

    update, recovery = read_key(update_key), read_key(recovery_key)
    content = read_patches(patches) or [{"action": "replace", "document": {}}]
    request = create_request(content, update_key=update.public, recovery_key=recovery.public, kind=kind)
    print_request(request, profile_of(profile_name))


@example("millstream did update did:sidetree:EiAbc --key update.json --next-key next.json --patches patches.json")
@did.command()
@click.argument("name", metavar="DID")
@key_option("--key", "File with the current private update key (a JWK, see `millstream did key`).")
@key_option("--next-key", "File with the private key that will sign the next update (a JWK).")
@click.option(
    "--patches", type=click.File("rb"), required=True, help="JSON file with a Sidetree patch or a list of patches."
)
@profile_option
def update(name: str, key: Path, next_key: Path, patches: BinaryIO, profile_name: str) -> None:
    """Print the request that changes a DID's document."""
    from millstream.anchoring.sidetree import update_request

    profile = profile_of(profile_name)
    suffix, signer = suffix_of(name, profile), read_key(key)
    request = update_request(suffix, read_patches(patches), key=signer, next_update_key=read_key(next_key).public)
    print_request(request, profile)


@example(
    "millstream did recover did:sidetree:EiAbc --key old.json --next-recovery-key new.json "
    "--next-update-key update.json"
)
@did.command()
@click.argument("name", metavar="DID")
@key_option("--key", "File with the current private recovery key (a JWK, see `millstream did key`).")
@key_option("--next-recovery-key", "File with the private recovery key from now on (a JWK).")
@key_option("--next-update-key", "File with the private update key from now on (a JWK).")
@patches_option
@profile_option
def recover(
    name: str, key: Path, next_recovery_key: Path, next_update_key: Path, patches: BinaryIO | None, profile_name: str
) -> None:
    """Print the request that replaces a DID's document and keys."""
    from millstream.anchoring.sidetree import recover_request

    profile = profile_of(profile_name)
    request = recover_request(
        suffix_of(name, profile),
        read_patches(patches) or [{"action": "replace", "document": {}}],
        key=read_key(key),
        next_recovery_key=read_key(next_recovery_key).public,
        next_update_key=read_key(next_update_key).public,
    )
    print_request(request, profile)


@example("millstream did deactivate did:sidetree:EiAbc --key recovery.json")
@did.command()
@click.argument("name", metavar="DID")
@key_option("--key", "File with the current private recovery key (a JWK, see `millstream did key`).")
@profile_option
def deactivate(name: str, key: Path, profile_name: str) -> None:
    """Print the request that deactivates a DID. This cannot be undone."""
    from millstream.anchoring.sidetree import deactivate_request

    profile = profile_of(profile_name)
    print_request(deactivate_request(suffix_of(name, profile), key=read_key(key)), profile)


@example("millstream did name request.json")
@did.command("name")
@click.argument("request", type=click.File("rb"))
@profile_option
def name_(request: BinaryIO, profile_name: str) -> None:
    """Print the DID of a create request: the short form, and the long form that resolves at once.

    REQUEST is the file with the output of `millstream did create`, or - for standard input.
    """
    from millstream.anchoring.sidetree import OperationType, long_form

    profile = profile_of(profile_name)
    operation = parse(request.read(profile.max_operation_bytes + 1).strip(), profile, request.name)
    if operation.type != OperationType.CREATE:
        raise DidInputError(
            f"{request.name} is a request of type {operation.type}; only a create request defines a DID: "
            "give its create request"
        )
    print_json({"did": f"did:{profile.method}:{operation.suffix}", "long_form": long_form(operation, profile)})


@example("millstream did resolve did:sidetree:EiAbc")
@did.command()
@click.argument("name", metavar="DID")
@click.option(
    "--operations", type=click.File("rb"), metavar="FILE", help="File of requests in anchored order, one per line."
)
@profile_option
@data_options
def resolve(settings: Settings, name: str, operations: BinaryIO | None, profile_name: str) -> None:
    """Print the document of DID as the node has observed it, or after the operations in a file.

    A long form resolves before anything is anchored; a short form does if the setting
    registry.unpublished_operation_lifespan counts accepted operations. Operations on other DIDs, and operations that
    are invalid in the state of the DID, are skipped. --profile has no effect if the node resolves the DID: its settings
    name the profile. Without a node in the default folder, only a long form or --operations is resolved. Exit code 3 if
    the DID is unknown, or if there is no node in the folder that you name.
    """
    if operations is not None:
        answer = resolve_from(operations, name, profile_of(profile_name))
    elif settings.folder.exists() or setting_origins().keys() & {"data", "node.database"}:
        from millstream.node import Node

        with Node.open(settings, reads=True) as node:
            answer = node.registry.instance.history.resolve(name)
    else:
        answer = resolve_from(None, name, profile_of(profile_name))
    if answer is None:
        raise DidUnknownError(
            f"unknown DID {name[:100]}: give its long form, or give a file with its create operation with --operations"
        )
    print_json(answer)


def resolve_from(source: BinaryIO | None, name: str, profile: Profile) -> dict[str, Any] | None:
    """The resolution of the DID *name* after the operations in *source*."""
    from millstream.anchoring import sidetree

    identifier = sidetree.parse_did(name, profile)
    return sidetree.resolution(identifier, sidetree.resolve(read_operations(source, identifier.suffix, profile)))


def profile_of(name: str) -> Profile:
    """The profile *name*."""
    from millstream.anchoring.sidetree import PROFILES

    return PROFILES[name]


def suffix_of(name: str, profile: Profile) -> str:
    """The suffix of the DID *name*."""
    from millstream.anchoring.sidetree import parse_did

    return parse_did(name, profile).suffix


def read_key(file: Path) -> PrivateKey:
    """The private key in *file*."""
    from millstream.anchoring.sidetree import PrivateKey, RequestError

    try:
        with file.open("rb") as source:
            return PrivateKey(msgspec.json.decode(source.read(10_000), type=prepared(dict[str, str])))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RequestError) as error:
        if isinstance(error, OSError):
            raise DidInputError(f"cannot read the private key in {file}: {error.strerror}") from error
        raise DidInputError(
            f"{file} contains no private key (JWK): {field_reason(error, dict)}; name a file of `millstream did key`"
        ) from error


def read_patches(source: BinaryIO | None) -> list[dict[str, Any]]:
    """The patches in *source*, which holds one or a list; none without a source."""
    if source is None:
        return []
    try:
        value = msgspec.json.decode(
            source.read(1_000_000).removeprefix(BOM_UTF8), type=prepared(dict[str, Any] | list[dict[str, Any]])
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DidInputError(f"{source.name} contains no valid patch: {field_reason(error, dict)}") from error
    return value if isinstance(value, list) else [value]


def read_operations(source: BinaryIO | None, suffix: str, profile: Profile) -> list[Any]:
    """The operations on *suffix* in *source*, numbered by their lines."""
    from millstream.anchoring.sidetree import AnchoredOperation

    if source is None:
        return []
    data = source.read(MAX_OPERATIONS_BYTES + 1)
    if len(data) > MAX_OPERATIONS_BYTES:  # what is cut off may deactivate the DID
        raise DidInputError(
            f"{source.name} is larger than {MAX_OPERATIONS_BYTES:,} bytes: give a file with only the operations on the "
            "DID: its create request, and the lines that contain its suffix"
        )
    lines = enumerate(data.removeprefix(BOM_UTF8).splitlines(), start=1)
    parsed = [(number, parse(line, profile, f"{source.name}:{number}")) for number, line in lines if line.strip()]
    return [AnchoredOperation(number, 0, operation) for number, operation in parsed if operation.suffix == suffix]


def parse(data: bytes, profile: Profile, where: str) -> Operation:
    """The operation in *data*; an error names its position *where*."""
    from millstream.anchoring.sidetree import RequestError, parse_request

    try:
        return parse_request(data, profile)
    except RequestError as error:
        raise DidInputError(f"{where}: {error}") from error


def print_request(request: bytes, profile: Profile) -> None:
    """Print *request*, after a check that a node would accept it."""
    parse(request, profile, "the request")
    sys.stdout.buffer.write(request + b"\n")
    sys.stdout.buffer.flush()
