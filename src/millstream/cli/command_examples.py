"""An example of every command, shown at the end of its help. A test parses each of them with the command itself."""

from __future__ import annotations

from collections.abc import Mapping

import click

_EXAMPLES = """
millstream demo
millstream doctor
millstream completion bash > ~/.local/share/bash-completion/completions/millstream
millstream protect ~/photos --to /mnt/disk --to s3://bucket/copies
millstream restore photos --to /mnt/back
millstream status --json
millstream log append weather readings.jsonl --jsonl
millstream log copy sqlite:///old/log.db segments:///srv/new weather --consumers
millstream log create weather
millstream log describe weather --json
millstream log list
millstream log read weather --from 1000 --max 10
millstream log relay mysql://app:secret@127.0.0.1/shop --log orders --create-table
millstream log seek weather --consumer report --time 2026-11-22T00:00:00Z
millstream log tail weather -n 5 --follow
millstream log tier weather --to s3://archive/tiers --keep-age 30d
millstream log torture --kills 20 --seconds 60
millstream log trim weather --max-age 90d --keep-consumers --dry-run
millstream log upkeep
millstream log verify weather --deep
millstream serve --console 127.0.0.1:8460 --no-broker
millstream topic create orders --type FIFO
millstream topic delete orders
millstream topic describe orders
millstream topic list --json
millstream group configure billing --max-attempts 5 --backoff 1s,10s,1m
millstream group describe billing
millstream group list
millstream group reset billing --topic orders --time 1795305600000000
millstream client list --group billing
millstream client stack billing-7f3a@host
millstream client verify billing-7f3a@host orders 42
millstream ingest mqtt mqtt://127.0.0.1:1883 --topic 'sensors/#' --log weather
millstream send orders 'two pairs of boots' --tag shoes
millstream receive orders --group billing --max 10
millstream batch --window 1200000000 --max-delay 3600000000 events.jsonl
millstream batch advise weather --windows 5m,30m
millstream batch explain --window 1200000000 --max-delay 3600000000 events.jsonl
millstream batch serve --log weather --output weather.batches --anchor
millstream batch shrink --window 1200000000 --max-delay 3600000000 events.jsonl
millstream anchor checkpoint > checkpoint.txt
millstream anchor cosign --wait 1m
millstream anchor cut --force
millstream anchor feed weather weather.batches --every 30s
millstream anchor key create --origin example.org/anchors
millstream anchor key rotate --overlap 30d
millstream anchor key show --ledger reports
millstream anchor ledger --from 10
millstream anchor linksets links/ --author did:orb:abc
millstream anchor monitor https://example.org/ledger/anchors --key ledger.key --state anchors.state --once
millstream anchor observe --ledger https://registry.example.org --cas https://ipfs.io/ipfs --cas files/
millstream anchor redrive
millstream anchor replay
millstream anchor serve --http 127.0.0.1:8080
millstream anchor status
millstream anchor timestamp --ledger reports
millstream anchor timestamps --json
millstream anchor verify --ledger reports
millstream anchor submit operations.jsonl
millstream anchor witnesses --json
millstream did create --update-key update.json --recovery-key recovery.json
millstream did deactivate did:sidetree:EiAbc --key recovery.json
millstream did key update.json
millstream did name request.json
millstream did recover did:sidetree:EiAbc --key old.json --next-recovery-key new.json --next-update-key update.json
millstream did resolve did:sidetree:EiAbc
millstream did update did:sidetree:EiAbc --key update.json --next-key next.json --patches patches.json
millstream prove weather 7 --tlog weather-7.tlog-proof > proof.json
millstream verify proof.json --key example.org.key
millstream witness serve --key witness.key --log example.org/anchors+5f0f5c31+AYg…
millstream witness status --key witness.key
millstream store acl primary photos --set group-readers=read
millstream store create second photos
millstream store cp primary photos 2013/a.jpg backup
millstream store export primary photos --bagit bag
millstream store get primary photos 2013/a.jpg a.jpg
millstream store import primary photos --bagit bag --create
millstream store list primary photos --prefix 2013/
millstream store props primary photos 2013/a.jpg --set reviewed=yes
millstream store put primary photos 2013/ --create
millstream store delete primary photos 2013/a.jpg
millstream mill accept photos photos 2013/a.jpg
millstream mill approve 1
millstream mill audit primary photos
millstream mill check --store second --space photos
millstream mill duplicate --space photos --dry-run
millstream mill forget primary photos 2013/a.jpg
millstream mill policy lint
millstream mill policy plan local policy.json
millstream mill policy save local policy.json
millstream mill policy show
millstream mill policy withdraw local
millstream mill produce audit-log --once
millstream mill produce bits --once
millstream mill produce duplication --once --differences
millstream mill produce statistics --once
millstream mill rebuild content-index second photos
millstream mill reconcile primary
millstream mill reject 2 --reason "the source is on the wrong disk"
millstream mill repair photos 2013/a.jpg --dry-run
millstream mill report second photos --html report.html
millstream mill statistics second
millstream mill work --produce
millstream queue amend duplication-high 17 task.json
millstream queue dead duplication-high --limit 10
millstream queue depth
millstream queue discard duplication-high 17 18
millstream queue redrive duplication-high --per-second 10
millstream pipeline anchor weather --flush
millstream pipeline audit --identifiers
millstream pipeline batch weather --flush
millstream pipeline duplication --space photos --dry-run
millstream pipeline ingest readings/*.parquet --log weather
millstream pipeline integrity --older-than 30d
millstream pipeline inventory --space photos
millstream pipeline operations operations
millstream pipeline package millstream.zip
millstream pipeline report second photos
millstream pipeline statistics
millstream pipeline verify-batches weather --batches weather.batches
millstream pipeline warm
millstream bench log --quick
millstream config show
millstream config user ada --role admin
"""


_HEAD = "Example:"


def example_lines() -> list[str]:
    """Every example, as somebody would type it."""
    return _EXAMPLES.strip().splitlines()


def example_of(path: str) -> str | None:
    """The example of the command *path* (``millstream log append``)."""
    return _by_path().get(path)


def with_examples(command: click.Command, path: str) -> click.Command:
    """*command*, whose help, and that of the commands below it, ends with an example."""
    example = example_of(path)
    if example is not None and _HEAD not in (command.epilog or ""):
        command.epilog = "\n\n".join(filter(None, (command.epilog, f"\b\n{_HEAD}\n  {example}")))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                with_examples(below, f"{path} {name}")
    return command


def _by_path() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for line in example_lines():
        words = line.split()
        for length in (4, 3, 2):
            found.setdefault(" ".join(words[:length]), line)
    return found
