"""An encrypted log store is opened only if an authority that the URL names has signed the server's certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.log import LogSpec, StorageError, open_store
from support.certificates import Authority


def opened_if_trusted(url: str, trusted: Path, folder: Path, refusal: str) -> str:
    """The URL by which the store at *url* was opened and written with the certificate *trusted*; with that of another
    authority, made in *folder*, it is refused with the text *refusal*."""
    encrypted = f"{url}?tls_ca={trusted}"
    with open_store(encrypted) as store:
        assert store.url == encrypted
        with store.log(LogSpec("weather")).writer() as writer:
            assert writer.append([b"a"]) is not None
    with pytest.raises(StorageError, match=refusal):
        open_store(f"{url}?tls_ca={Authority(folder, 'theirs').path}")
    return encrypted
