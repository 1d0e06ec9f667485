"""A certificate and a key that cannot be used are named with the reason, and nothing of the key is shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from millstream.core.tls_files import KeyPairError, load_key_pair
from support.certificates import Authority

KEY = ec.generate_private_key(ec.SECP256R1())


def write(path: Path, encryption: KeySerializationEncryption | None = None, *, is_rsa: bool = False) -> None:
    key = rsa.generate_private_key(65537, 2048) if is_rsa else KEY
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()))


def test_the_faulty_file_of_a_key_pair_is_named_with_the_reason_of_openssl(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("server")
    for name in ("other", "rsa"):
        write(tmp_path / name, is_rsa=name == "rsa")
    write(tmp_path / "encrypted", BestAvailableEncryption(b"word"))
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "cut").write_bytes(key.read_bytes()[:-60])

    def refusal(certificate: Path, key: Path) -> str:
        with pytest.raises(KeyPairError) as raised:
            load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(certificate), str(key))
        assert key.name in ("none", "junk") or key.read_text().splitlines()[1] not in str(raised.value)
        return str(raised.value)

    load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(certificate), str(key))
    for name in ("other", "rsa"):
        text = f"the private key in {tmp_path / name} is not that of the certificate in {certificate} (OpenSSL: "
        assert refusal(certificate, tmp_path / name).startswith(text)
    assert refusal(certificate, tmp_path / "other").endswith("(OpenSSL: key values mismatch)")
    for name in ("junk", "cut"):
        file = tmp_path / name
        assert refusal(certificate, file) == f"{file} is not a PEM file with a private key (OpenSSL: PEM lib)"
    file = tmp_path / "junk"
    assert refusal(file, key) == f"{file} is not a PEM file with a certificate (OpenSSL: PEM lib)"
    file = tmp_path / "encrypted"
    assert refusal(certificate, file) == f"the private key in {file} is encrypted: give a key file without a password"
    file = tmp_path / "none"
    assert refusal(certificate, file) == refusal(file, key) == f"cannot read {file}: No such file or directory"
