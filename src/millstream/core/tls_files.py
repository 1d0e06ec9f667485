"""PEM files of TLS: loads a certificate with its key, and says which file cannot be used and why.

No text of this module contains anything of a key.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from millstream.core.errors import InputError

_OTHER_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_AROUND = re.compile(r"^\[[^\]]*\] | \(_ssl\.c:\d+\)$")


class KeyPairError(InputError):
    """The certificate or its private key cannot be used."""


def load_key_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Let *context* use the *certificate* (a file with its chain) and its private *key* (a file).

    Raises :class:`KeyPairError`, also where the key is encrypted: OpenSSL would ask the terminal for its password.
    """
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedKeyError as error:
        raise KeyPairError(f"the private key in {key} is encrypted: give a key file without a password") from error
    except ssl.SSLError as error:
        raise KeyPairError(_refusal(certificate, key, error)) from error
    except OSError as error:
        raise KeyPairError(_unreadable(certificate, key) or openssl_reason(error)) from error


def openssl_reason(error: OSError) -> str:
    """The reason of *error*, of OpenSSL or of the operating system, without places in the source of Python."""
    return _AROUND.sub("", error.strerror or str(error))


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> bytes:
    raise _EncryptedKeyError


def _refusal(certificate: str, key: str, error: ssl.SSLError) -> str:
    reason = openssl_reason(error)
    if error.reason in _OTHER_KEY:
        return f"the private key in {key} is not that of the certificate in {certificate} (OpenSSL: {reason})"
    if error.reason:  # None if a file has another form than PEM
        return f"OpenSSL refuses the certificate in {certificate} or its private key in {key}: {reason}"
    if _is_certificate(certificate):
        return f"{key} is not a PEM file with a private key (OpenSSL: {reason})"
    return f"{certificate} is not a PEM file with a certificate (OpenSSL: {reason})"


def _is_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=path)
    except OSError:
        return False
    return True


def _unreadable(*paths: str) -> str:
    for path in paths:
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            return f"cannot read {path}: {error.strerror}"
    return ""
