"""The spaces that a command of ``millstream mill`` processes."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.cli.common import echo_line
from millstream.core.shown_commands import arguments
from millstream.mill.configured_stores import is_system
from millstream.mill.errors import PolicyError, UnknownSpaceError
from millstream.node import Node
from millstream.stores import StoreError


def chosen_spaces(
    node: Node,
    store: str | None,
    space: str | None,
    known: Iterable[tuple[str, str]] = (),
    *,
    unlisted: list[str] | None = None,
    policy_errors: list[str] | None = None,
) -> list[tuple[str, str]]:
    """Every space of every store that is listed, or known to the manifest or otherwise; no system spaces.

    Of a store that cannot be listed only what is known is named, so that its reports say what is wrong; *unlisted* gets
    the names of such stores. With it a store that the manifest knows and that is not configured counts as one, and its
    spaces are left out. With *policy_errors* a space that the policies copy to a store counts as one, whether it is
    there or not; the list gets the reason if they cannot be read.
    """
    if store is not None:
        node.stores.providers.require(store)
    recorded = set(node.stores.manifest.spaces())
    present = {*node.stores.providers, *(name for name, _ in recorded)}  # of retired stores there is only history
    known = recorded | {place for place in known if place[0] in present}
    for name in node.stores.providers:
        try:
            known |= {(name, listed) for listed in node.stores.providers.call(node.stores.providers[name].spaces)}
        except StoreError as error:
            echo_line(f"{name}: {error}", err=True)
            if unlisted is not None and store in (None, name):
                unlisted.append(name)
    if unlisted is not None:
        for name in sorted({name for name, _ in known if name not in node.stores.providers and store is None}):
            echo_line(
                f"{name}: the manifest knows items in it, and no such store is configured; if it was removed for good, "
                f"`millstream mill retire {arguments(name)}` retires its records",
                err=True,
            )
            unlisted.append(name)
        known = {place for place in known if place[0] in node.stores.providers}
    if policy_errors is not None:
        known |= asked_spaces(node, known, policy_errors)
    chosen = [w for w in sorted(known) if store in (None, w[0]) and space in (None, w[1]) and not is_system(w[1])]
    if not chosen and store is None and space is None:
        raise UnknownSpaceError(
            "no space was found in the stores and the manifest: create one (`millstream store create STORE SPACE`)"
        )
    if not chosen:
        raise _unknown_space(store, space)
    return chosen


def require_space(node: Node, space: str) -> None:
    """Raise :class:`~millstream.mill.errors.UnknownSpaceError` if neither a store nor the manifest has *space*.

    A store that cannot be listed may have it.
    """
    if any(name == space for _, name in node.stores.manifest.spaces()):
        return
    for store in node.stores.providers:
        try:
            if space in node.stores.providers.spaces(store):
                return
        except StoreError:
            return
    raise _unknown_space(None, space)


def _unknown_space(store: str | None, space: str | None) -> UnknownSpaceError:
    where = "neither a store" if store is None else f"neither store {store!r}"
    name = "any space" if space is None else f"the space {space!r}"
    return UnknownSpaceError(
        f"{where} nor the manifest has {name}: check the names of store and space, or create the space "
        "(`millstream store create STORE SPACE`)"
    )


def asked_spaces(node: Node, known: Iterable[tuple[str, str]], errors: list[str] | None = None) -> set[tuple[str, str]]:
    """The (store, space) to which the policies copy those of the *known* ones that are sources.

    If the policies cannot be read, *errors* gets the reason, which is printed. Without it
    :class:`~millstream.mill.errors.PolicyError` or :class:`~millstream.stores.StoreError` is raised.
    """
    try:
        return {place for place in node.policies.current.copies_of(known) if place[0] in node.stores.providers}
    except (PolicyError, StoreError) as error:
        if errors is None:
            raise
        errors.append(str(error))
        echo_line(f"what the policies ask for is not known: {error}", err=True)
        return set()
