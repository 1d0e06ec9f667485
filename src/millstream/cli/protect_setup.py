"""The set-up before the first run of ``millstream protect``: stores in the settings file, spaces, a policy."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from millstream.cli.change_log import prepare_audit_log, record_change
from millstream.cli.protect_parts import alone_in_folder
from millstream.core.durable import rewrite_durably
from millstream.core.errors import InputError, NotFoundError
from millstream.core.mounts import lies_in
from millstream.mill.configured_stores import is_system
from millstream.mill.policies.policy import Pair, Policy, encode_policy, policy_file
from millstream.mill.policies.saving import save_policy, version_of
from millstream.node import Node
from millstream.settings import FILE_NAME, PRIMARY_URL, Settings, load_settings, settings_file
from millstream.stores import StoreUnavailableError, folder_url, open_provider
from millstream.stores.names import check_space
from millstream.stores.provider_schemes import PROVIDER_SCHEMES, object_prefix, provider_scheme
from millstream.stores.sources import local_folder, place_of

_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


class SetupError(InputError):
    """The requested protection cannot be set up."""


class SourceMissingError(NotFoundError):
    """The source's folder or bucket does not exist."""

    exit_code = 1  # whatever is wrong but the arguments: nothing is protected


class SourceEmptyError(SetupError):
    """The source is empty."""


IS_EMPTY = "mount its disk, correct the path, or confirm with --allow-empty that it is meant to be empty"
"""The remedy for an empty source."""


class Setup(NamedTuple):
    """What is protected: the settings with their stores, the source's store and space, and the stores of its copies."""

    settings: Settings
    store: str
    space: str
    destinations: Sequence[str]


class Stores(NamedTuple):
    """What the settings call the stores of a source and its copies.

    ``added`` are the URLs of those that they have not got yet, ``replaced`` is the source's URL that they have and that
    leaves out other items.
    """

    source: str
    url: str
    destinations: Sequence[str]
    added: Mapping[str, str]
    replaced: str | None


class Wanted(NamedTuple):
    """The request: the source's URL, its space, and the URLs of the destinations.

    With ``forgets_exclusion`` nothing is left out any more; ``is_empty`` says that nothing is listed in the source.
    """

    source: str
    space: str
    destinations: Sequence[str]
    forgets_exclusion: bool
    is_empty: bool


def wanted(source: str, to: Sequence[str], space: str | None, exclude: Sequence[str] | None, data: Path) -> Wanted:
    """The request that the arguments of the command describe. Raises :class:`SetupError`, :class:`SourceMissingError`.

    *exclude* is None where nothing is said of what to leave out. Nothing is written, and the source is there when this
    returns.
    """
    if not source or not all(to):
        raise SetupError("SOURCE or a URL of --to is empty: check whether a shell variable is unset")
    url = _source_url(source, space, exclude or ())
    opened = open_provider(url)
    try:
        found = opened.spaces()
        is_empty = not opened.entries(found[0], limit=1)
    except (NotFoundError, StoreUnavailableError, IndexError) as error:
        raise SourceMissingError(
            f"cannot list the source {source} ({error}); nothing was changed: check the path and that its disk is "
            "mounted, or the URL, its credentials and that its server answers"
        ) from error
    destinations = [_destination_url(one) for one in to]
    same = [_same(one) for one in destinations]
    for number, one in enumerate(same):
        if (first := same.index(one)) < number:
            raise SetupError(
                f"--to {to[first]} and --to {to[number]} are the same place, which would hold only one copy: give each "
                "--to a different place"
            )
    name = check_space(found[0])
    if is_system(name):
        raise SetupError(f"space name {name!r} is reserved for the system: choose another name with --space")
    _require_apart(opened.url, name, destinations, data)
    return Wanted(opened.url, name, destinations, exclude == (), is_empty)


def find_stores(settings: Settings, asked: Wanted, *, allow_empty: bool = False) -> Stores:
    """The stores that *asked* names, with their present or future names in the settings.

    Raises :class:`SetupError`, also for a new source that is empty, unless that is allowed.
    """
    urls = settings.store_urls
    known, is_changed = _find_source(urls, asked.source, forgets_exclusion=asked.forgets_exclusion)
    if known is None and asked.is_empty and not allow_empty:
        raise SourceEmptyError(f"the source {asked.source} is empty, and nothing was set up: {IS_EMPTY}")
    store = known or _new_name(asked.space, urls)
    _require_free(settings, store, asked)
    added = {} if known else {store: asked.source}
    names: list[str] = []
    for url in asked.destinations:
        name = _find_store({**urls, **added}, url)
        if name is None:
            name = _new_name(_last_part(url), {**urls, **added})
            added[name] = url
        names.append(name)
    replaced = urls[store] if is_changed else None
    return Stores(store, asked.source if is_changed or not known else urls[store], names, added, replaced)


def set_up(settings: Settings, config: Path | None, asked: Wanted, *, allow_empty: bool = False) -> Setup:
    """Add to the settings file, the stores and the policy what is not there yet.

    Raises :class:`SetupError` where the space or the settings file stands in the way, and
    :class:`~millstream.cli.protect_parts.ProtectBusyError` where another run is active in the folder.
    """
    find_stores(settings, asked, allow_empty=allow_empty)  # what is refused makes no folder
    with alone_in_folder(settings.folder):
        settings, _ = load_settings({"data": settings.data}, config=config)  # another run may have added stores
        stores = find_stores(settings, asked, allow_empty=allow_empty)
        path = settings_file(settings.folder, config=config)
        before = path.read_text("utf-8") if path.exists() else ""
        text = _with_stores(before, path, settings, stores)
        for name in stores.destinations:
            if name in stores.added:
                open_provider(stores.added[name], create=True).create_space(asked.space)
        if text != before:
            rewrite_durably(path, text.encode("utf-8"))
            settings, _ = load_settings({"data": settings.data}, config=config)
        _ask(settings, stores.source, asked.space, stores.destinations)
    return Setup(settings, stores.source, asked.space, stores.destinations)


def _source_url(source: str, space: str | None, exclude: Sequence[str]) -> str:
    if "://" not in source:
        path = Path(source).expanduser().absolute()
        return str(folder_url(path, space, tuple(exclude)))
    parts = urlsplit(source)
    if parts.scheme != "file" and provider_scheme(parts).is_source == "never":
        raise SetupError(f"invalid source {source!r}: name a folder, or s3://bucket/prefix")
    folder = local_folder(source) if parts.scheme == "file" else None
    if folder is not None:
        return str(folder_url(folder, space, tuple(exclude)))
    query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if not (space and pair[0] == "space")]
    named = space or dict(query).get("space") or _last_part(source)
    extra = [("space", named)] if "space" not in dict(query) else []
    return urlunsplit(parts._replace(query=urlencode([*query, *extra, *(("exclude", one) for one in exclude)])))


def _destination_url(to: str) -> str:
    if "://" not in to:
        return Path(to).expanduser().absolute().as_uri()
    name, scheme = urlsplit(to).scheme, provider_scheme(to)
    if name in PROVIDER_SCHEMES and not scheme.takes_copies:
        if not scheme.in_folder:
            raise SetupError(f"invalid destination {to!r}: copies in memory are lost when this command ends: {_GIVE}")
        raise SetupError(f"invalid destination {to!r}: a {name}: URL cannot be a destination: {_GIVE}")
    open_provider(to)  # a URL that names no store is refused before anything is set up
    return to


_GIVE = "give a path, or a file:// or s3:// URL"


def _same(url: str) -> tuple[str, object, list[tuple[str, str]]]:
    """What makes two URLs those of one store: its place, and the space of a source or the mounts that it has."""
    parts = urlsplit(url)
    kept = sorted(pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] in _OPTIONS)
    return parts.scheme, place_of(url), kept


_OPTIONS = ("space", "mount")


def _find_store(urls: Mapping[str, str], url: str) -> str | None:
    """The store of *urls* at the place of *url*, if there is one. Raises :class:`SetupError` where *url* names another
    way to it, such as other credentials."""
    same = [name for name, known in urls.items() if _same(known) == _same(url)]
    if not same:
        return None
    name = min(same, key=lambda one: len(_way(url) - _way(urls[one])))
    if other := _way(url) - _way(urls[name]):
        options = ", ".join(f"{option}={value}" for option, value in sorted(other))
        raise SetupError(
            f"{url} is the store {name!r} of the settings ({urls[name]}), with other options ({options}): give that "
            f"URL, or change the url of [stores.{name}] in the settings; if it is on another server, add endpoint=URL"
        )
    return name


def _way(url: str) -> set[tuple[str, str]]:
    """The options that say how the store at *url* is reached."""
    parts = urlsplit(url)
    others = (*_OPTIONS, "exclude", "requests", provider_scheme(parts).server_option)
    return {pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in others}


def _find_source(urls: Mapping[str, str], url: str, *, forgets_exclusion: bool) -> tuple[str | None, bool]:
    """The store at *url*, if there is one, and whether it is to leave out other items from now on."""
    name = _find_store(urls, url)
    if name is None:
        return None, False
    is_said = forgets_exclusion or bool(_excluded(url))
    return name, is_said and _excluded(urls[name]) != _excluded(url)


def _excluded(url: str) -> list[str]:
    return [value for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True) if name == "exclude"]


def _require_apart(source: str, space: str, destinations: Sequence[str], data: Path) -> None:
    """Raise :class:`SetupError` if the source, a copy or the node's folder contains another of these."""
    for url in destinations:
        if provider_scheme(source).in_bucket and object_prefix(source).overlaps(object_prefix(url, space)):
            raise SetupError(f"the copy at {url} and the source {source} overlap: name another prefix")
        for other in destinations:
            if provider_scheme(other).in_bucket and object_prefix(url).lies_in(object_prefix(other, space)):
                raise SetupError(
                    f"the copy at {url} would lie in the copy of {space} at {other}: choose another prefix for the copy"
                )
    folders = [folder.resolve() for url in destinations if (folder := local_folder(url)) is not None]
    _require_copies_apart(space, folders, data)
    source_folder = local_folder(source)
    if source_folder is None:
        return
    root = source_folder.resolve()
    if lies_in(data, root):
        raise SetupError(
            f"the node's folder {data} lies in the source {root}, which must not be written to: choose "
            "another folder with --data"
        )
    for folder in folders:
        if lies_in(folder, root) or lies_in(folder / space, root):
            raise SetupError(f"the copy at {folder} would lie in the source {root}: choose another folder for the copy")
        if lies_in(root, folder / space):
            raise SetupError(
                f"the source {root} lies inside the folder of its copy, {folder / space}: choose another folder for "
                "the copy"
            )


def _require_copies_apart(space: str, folders: Sequence[Path], data: Path) -> None:
    """Raise :class:`SetupError` if a copy would lie in the folder of another copy or of the node."""
    for number, one in enumerate(folders):
        if lies_in(one, data):
            raise SetupError(
                f"the copy at {one} would lie in the node's folder {data}: choose another folder for the copy"
            )
        if lies_in(data, one):
            raise SetupError(
                f"the node's folder {data} lies in the destination {one}: choose another folder with --data"
            )
        for other in folders[:number]:
            if lies_in(one, other) and lies_in(other, one):
                raise SetupError(
                    f"{one} and {other} are the same folder, which would make a single copy: name two folders"
                )
        for other in folders:
            if lies_in(one, other / space):
                raise SetupError(
                    f"the copy at {one} would lie in the copy {other / space}: choose another folder for the copy"
                )


def _require_free(settings: Settings, store: str, asked: Wanted) -> None:
    """Raise :class:`SetupError` where the space is copied from another store."""
    if not any((settings.folder / name).exists() for name in (FILE_NAME, "policies", "node.db")):
        return
    with Node.open(settings) as node:
        for policy in node.policies.current.by_account.values():
            for pair in policy.spaces.get(asked.space, ()):
                if pair.source != store:
                    raise SetupError(
                        f"space {asked.space!r} is already copied from store {pair.source!r}: choose "
                        "another name with --space"
                    )


def _new_name(wish: str, taken: Mapping[str, str]) -> str:
    base = _ODD.sub("-", wish).strip("-.") or "store"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _last_part(url: str) -> str:
    parts = urlsplit(url)
    return unquote(parts.path).rstrip("/").rpartition("/")[2] or parts.netloc or "store"


def _with_stores(text: str, path: Path, settings: Settings, stores: Stores) -> str:
    """The settings *text* of the file *path* with the *stores*. Raises :class:`SetupError` where they do not fit."""
    if stores.replaced is not None:
        text = _replace_url(text, path, stores.replaced, stores.url)
    if not stores.added:
        return text
    gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    text = f"{text}{gap}{_tables(settings, stores.added)}\n"
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SetupError(
            f"cannot add [stores.NAME] tables to {path} ({error}); nothing was changed: write the stores that it has "
            "as such tables, and run the command again"
        ) from error
    return text


def _tables(settings: Settings, added: Mapping[str, str]) -> str:
    """The tables of the stores *added*; a node of before keeps its first store."""
    from millstream.node.databases import has_database

    urls = dict(added)
    if not settings.stores and has_database(settings):
        urls = {"primary": PRIMARY_URL, **urls}
    return "\n\n".join(f"[stores.{_toml(name)}]\nurl = {_toml(url)}" for name, url in urls.items())


def _replace_url(text: str, path: Path, before: str, after: str) -> str:
    if text.count(_toml(before)) != 1:
        raise SetupError(
            f"--exclude and --no-exclude cannot change {path}: set the source's url = {_toml(after)} there"
        )
    return text.replace(_toml(before), _toml(after))


def _toml(text: str) -> str:
    """*text* as a basic string of TOML, which JSON's strings are."""
    return json.dumps(text, ensure_ascii=False)


def _ask(settings: Settings, store: str, space: str, names: Sequence[str]) -> None:
    """Add the copies to the policy, and keep its other rules."""
    account = settings.mill.account
    with Node.open(settings, create=True) as node:
        version = version_of(node.policies.location.read(policy_file(account)))
        policy = node.policies.current.by_account.get(account, Policy(account))
        asked = policy.spaces.get(space, ())
        pairs = tuple(dict.fromkeys([*asked, *(Pair(store, name) for name in names)]))
        if pairs != asked:
            spaces = {**policy.spaces, space: pairs}
            data = encode_policy(msgspec.structs.replace(policy, spaces=spaces))
            prepare_audit_log(node)
            saved = save_policy(node.policies.location, account, data, if_match=version)
            record_change(node, "save policy", account, **saved.facts)
        if space in policy.ignored:
            raise SetupError(
                f"the policy of account {account!r} ignores space {space!r}: remove the space "
                "from spacesToIgnore, and save the policy (`millstream mill policy save`)"
            )
