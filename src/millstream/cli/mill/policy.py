"""``millstream mill policy``: show, lint, save and plan the duplication policies."""

from __future__ import annotations

from typing import BinaryIO

import click
import msgspec

from millstream.cli.change_log import prepare_audit_log, record_change
from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.plan_printing import print_plan, print_total
from millstream.mill.duplication.differences import DuplicationPlan
from millstream.mill.duplication.planning import duplication_rounds, plan_space_duplication
from millstream.mill.errors import PolicyError
from millstream.mill.policies.lint import lint_policies
from millstream.mill.policies.locations import MAX_BYTES
from millstream.mill.policies.policy import Policy, encode_policy, policy_file
from millstream.mill.policies.repository import Policies
from millstream.mill.policies.saving import read_policy, save_policy, version_of, withdraw_policy
from millstream.node import Node
from millstream.settings import Settings


@click.group(cls=SummaryGroup)
def policy() -> None:
    """Show and change which spaces are copied to which stores."""


@example("millstream mill policy show")
@policy.command("show")
@data_options
@json_option
def show_policy(settings: Settings, as_json: bool) -> None:
    """Print the policy of every account."""
    with Node.open(settings, reads=True) as node:
        for account, one in node.policies.current.by_account.items():
            version = version_of(node.policies.location.read(policy_file(account)))
            if as_json:
                print_json({"account": account, "version": version, "policy": msgspec.Raw(encode_policy(one))})
                continue
            click.echo(f"{account} (version {version}):")
            for space, pairs in one.spaces.items():
                click.echo(f"  {space}: {', '.join(map(str, pairs)) or 'as other spaces'}")
            click.echo(f"  other spaces: {', '.join(map(str, one.defaults)) or 'not copied'}")
            if one.ignored:
                click.echo(f"  never copied: {', '.join(one.ignored)}")


@example("millstream mill policy lint")
@policy.command("lint")
@data_options
@json_option
def lint(settings: Settings, as_json: bool) -> int:
    """Print probable mistakes in the policies. Exit code 1 if there are any."""
    found = 0
    with Node.open(settings, reads=True) as node:
        for account, findings in lint_policies(node.policies.current, list(settings.store_urls)).items():
            for warned in findings:
                found += 1
                if as_json:
                    print_json({"account": account, **msgspec.to_builtins(warned)})
                else:
                    click.echo(f"{account}: {warned.code}: {warned}")
    return 1 if found else 0


@example("millstream mill policy save local policy.json")
@policy.command("save")
@click.argument("account")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--if-match",
    metavar="VERSION",
    help="Save only if this is the current version, as `mill policy show` prints it; `none` for a new policy.",
)
@data_options
@json_option
def save(settings: Settings, account: str, file: BinaryIO, if_match: str | None, as_json: bool) -> None:
    """Save the policy in FILE (- for standard input) for ACCOUNT, and apply it; every version is kept.

    FILE is JSON (docs/formats/duplication-policy.md). With --if-match, exit code 4 if another version was saved
    meanwhile; without it, that version is replaced.
    """
    with Node.open(settings, create=True) as node:
        prepare_audit_log(node)
        saved = save_policy(node.policies.location, account, file.read(MAX_BYTES + 1), if_match=if_match)
        record_change(node, "save policy", account, **saved.facts)
        _warn(node, account)
    if as_json:
        print_json(saved)
    else:
        click.echo(f"{account}: version {saved.version}, number {saved.number} of its history")


def _warn(node: Node, account: str) -> None:
    """Print probable mistakes in the saved policy of *account*."""
    try:
        findings = lint_policies(node.policies.current, list(node.settings.store_urls))[account]
    except PolicyError as error:
        click.echo(
            f"the policy is saved, but no policy is in force, because that of another account is invalid: {error}",
            err=True,
        )
        return
    for warned in findings:
        click.echo(f"{account}: {warned.code}: {warned}", err=True)


@example("millstream mill policy withdraw local")
@policy.command("withdraw")
@click.argument("account")
@click.option("--if-match", metavar="VERSION", help="Withdraw only if this is the current version.")
@data_options
def withdraw(settings: Settings, account: str, if_match: str | None) -> None:
    """Withdraw the policy of ACCOUNT: nothing is copied by it until it is saved again.

    All versions are kept. With --if-match, which takes a version as `millstream mill policy show` prints it, exit code
    4 if another version was saved meanwhile.
    """
    with Node.open(settings) as node:
        prepare_audit_log(node)
        withdraw_policy(node.policies.location, account, if_match=if_match)
        record_change(node, "withdraw policy", account)
    click.echo(f"{account}: policy withdrawn")


@example("millstream mill policy plan local policy.json")
@policy.command("plan")
@click.argument("account")
@click.argument("file", type=click.File("rb"))
@data_options
@json_option
def plan_policy(settings: Settings, account: str, file: BinaryIO, as_json: bool) -> None:
    """Preview the policy in FILE for ACCOUNT: items, bytes and deletions, by space and in total.

    FILE is JSON (docs/formats/duplication-policy.md), or - for standard input. Changes nothing.
    """
    proposed = read_policy(file.read(MAX_BYTES + 1), account).policy
    plans = list[DuplicationPlan]()
    with Node.open(settings, reads=True) as node:
        current = node.policies.current.by_account.get(account, Policy(account))
        for pairs in duplication_rounds(Policies({account: proposed}), node.stores.providers):
            for pair, space in pairs:
                stores = node.stores
                plan = plan_space_duplication(
                    stores.providers,
                    stores.manifest,
                    pair,
                    space,
                    None,
                    change_guard=stores.change_guard,
                    outbox=stores.outbox,
                )
                plans.append(plan)
                print_plan(plans[-1], as_json)
        print_total(plans, as_json)
        for pairs in duplication_rounds(Policies({account: current}), node.stores.providers):
            for pair, space in pairs:
                if pair not in proposed.lookup(space) and not as_json:
                    click.echo(f"{space} {pair}: no longer updated; existing copies stay")
