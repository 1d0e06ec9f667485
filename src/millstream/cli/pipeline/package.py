"""``millstream pipeline package``: write the archive that ``spark-submit`` ships to executors."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.examples import example
from millstream.core.amounts import counted, size_text
from millstream.core.errors import InputError


@example("millstream pipeline package millstream.zip")
@click.command("package")
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.zip")
def package_command(target: Path) -> None:
    """Write this package to FILE.zip, for `spark-submit --py-files FILE.zip JOB.py`.

    Executors then need its dependencies (pyarrow, msgspec, …), but not Millstream itself.
    """
    from millstream.pipeline.package_zip import write_package

    if target.suffix != ".zip":
        raise InputError(f"invalid file name {target}: use a name that ends in .zip, which Spark adds to Python's path")
    try:
        count = write_package(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    click.echo(f"{target}: {counted(count, 'file')}, {size_text(target.stat().st_size)}")
