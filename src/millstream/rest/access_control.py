"""Access control: sessions in signed cookies, tokens against forged forms, and a limit on guessed passwords.

A node without users trusts everybody who reaches it, and so is reached from its own machine alone. Pages and programs
are not distinguished: both are a caller (:class:`~millstream.rest.principal.Principal`) with a role.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from millstream.core.address import client_network
from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.decoding import prepared
from millstream.core.documents import KEY_BYTES
from millstream.core.durable import file_lock, sync_folder
from millstream.core.errors import BusyError, InputError, MillstreamError
from millstream.core.passwords import check_hash, is_password
from millstream.rest.principal import Principal
from millstream.rest.sign_ins import UNKNOWN, SignedOutSessions, SignInAudit
from millstream.settings.console import ConsoleSettings, Role, UserSettings
from millstream.status.local_token import KEY_FILE, token_of

LOCAL = Principal("local", Role.ADMIN)
"""Everybody, on a node without users."""

MAX_FAILED_SIGN_INS = 5
BLOCK_SECONDS = 60.0
_REMEMBERED_GUESSES = 10_000
_TURNS = 256
_BASIC_SECONDS = 300.0

_hashers = threading.BoundedSemaphore(2)
"""Passwords that are hashed at the same time, of all addresses: each takes a core and 32 MiB."""

_HASHER_SECONDS = 5.0
_NOTICE_SECONDS = 60


class AuthenticationError(MillstreamError):
    """Sign in first, or send a user name and a password (HTTP Basic)."""


class PermissionDeniedError(MillstreamError):
    """Your role does not allow this."""


class InvalidFormTokenError(MillstreamError):
    """The form has expired, because the node was set up again or another user signed in: open its page again."""


class TooManySignInsError(MillstreamError):
    """Too many wrong passwords from this address: try again in one minute."""

    retry_after = BLOCK_SECONDS


class SignInsBusyError(BusyError):
    """Many users, or somebody who guesses passwords, sign in now: try again in a few seconds."""


class MissingUsersError(InputError):
    """The console would be open to other machines, and there are no users."""


class Session(msgspec.Struct, frozen=True):
    """A browser that was here before: ``name`` is empty if no user signed in with it; ``expires`` in microseconds."""

    name: str
    expires: int
    nonce: str


class AccessControl:
    """The users of *settings*, and a secret key that outlives restarts: the one in *folder*, or for sessions
    *session_key*, by which several processes know one another's. Sessions that end early are added to
    *signed_out*, and *audit* records who signs in, fails to and signs out. Thread-safe.

    Raises :class:`~millstream.core.passwords.PasswordError` where a password in the settings is not a hash.
    """

    def __init__(
        self,
        settings: ConsoleSettings,
        folder: Path,
        clock: Clock,
        *,
        signed_out: SignedOutSessions,
        audit: SignInAudit,
        session_key: bytes | None = None,
    ) -> None:
        self.settings = settings
        self._users: Mapping[str, UserSettings] = settings.users
        for name, user in self._users.items():
            check_hash(user.password, f"console.users.{name}.password")
        self._clock = clock
        self._key = _load_key(folder / KEY_FILE)
        self._session_key = session_key or self._key
        self._sign_in_limiter = _SignInLimiter(clock)
        self._signed_out = signed_out
        self._audit = audit
        self._known_basic: dict[bytes, tuple[str, float]] = {}
        self._decoy = next(iter(self._users.values())).password if self._users else ""

    @property
    def has_users(self) -> bool:
        """Whether anybody has to sign in."""
        return bool(self._users)

    def new_session(self, name: str = "") -> Session:
        """A session that begins now, of the user *name*, or without a user yet."""
        lasts = round(self.settings.session_hours * 3600 * MICROSECONDS)
        return Session(name, self._clock.now() + lasts, secrets.token_urlsafe(16))

    def cookie(self, session: Session) -> str:
        """*session*, signed."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode("ascii").rstrip("=")
        return f"{body}.{self._sign('visit', body, self._fingerprint(session.name))}"

    def read_cookie(self, cookie: str) -> Session | None:
        """The session of *cookie*; None where it is not ours, over, or its user has another password by now."""
        body, _, signature = cookie.partition(".")
        try:
            session = msgspec.json.decode(
                base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=prepared(Session)
            )
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
            return None
        expected = self._sign("visit", body, self._fingerprint(session.name))
        if not _is_equal(expected, signature):
            return None
        gone = session.expires <= self._clock.now() or session.nonce in self._signed_out
        return None if gone or (session.name and session.name not in self._users) else session

    def form_token(self, session: Session) -> str:
        """The token that every form of a page of *session* must send."""
        return self._sign("form", session.nonce, session.name)

    def is_form_token(self, session: Session, token: str) -> bool:
        """Whether *token* is the one of *session*."""
        return _is_equal(self.form_token(session), token)

    def sign_notice(self, session: Session, text: str) -> str:
        """*text* for the address of the next page of *session*, which shows it for a minute."""
        body = f"{self._clock.now() // MICROSECONDS}.{text}"
        return f"{self._sign('notice', session.nonce, body)}.{body}"

    def read_notice(self, session: Session, signed: str) -> str:
        """The text that was signed for *session* within the last minute; empty for anything else."""
        signature, _, body = signed.partition(".")
        seconds, _, text = body.partition(".")
        if not _is_equal(self._sign("notice", session.nonce, body), signature):
            return ""
        return text if self._clock.now() // MICROSECONDS - int(seconds) <= _NOTICE_SECONDS else ""

    def principal(self, session: Session | None) -> Principal | None:
        """The user of *session*; None if a sign-in is required."""
        if not self.has_users:
            return LOCAL
        user = self._users.get(session.name) if session else None
        return Principal(session.name, user.role) if session and user else None

    def sign_in(self, name: str, password: str, address: str) -> Session:
        """A new session of *name*. Takes equally long whether the name or the password is wrong.

        Raises :class:`AuthenticationError`, :class:`TooManySignInsError`.
        """
        self._check(name, password, address)
        self._audit.signed_in(name, address)
        return self.new_session(name)

    def sign_out(self, session: Session, address: str) -> None:
        """End *session*: its cookies are no longer accepted, not even after a restart.

        A session without a user gives no rights, and anybody can begin as many as they like: none is recorded.
        """
        if session.name:
            self._signed_out.add(session.nonce, session.expires)
            self._audit.signed_out(session.name, address)

    def basic(self, header: str, address: str) -> Principal:
        """The user of ``Authorization: Basic …``. Raises :class:`AuthenticationError`, :class:`TooManySignInsError`."""
        digest = hmac.digest(self._key, header.encode("utf-8", "replace"), "sha256")
        name, until = self._known_basic.get(digest, ("", 0.0))
        if until <= self._clock.monotonic():
            try:
                name, _, password = base64.b64decode(header.partition(" ")[2], validate=True).decode().partition(":")
            except ValueError:
                raise AuthenticationError(
                    "invalid Authorization header: write Basic and the base64 of USER:PASSWORD"
                ) from None
            self._check(name, password, address)
            if len(self._known_basic) > 1000:
                self._known_basic.clear()
            self._audit.program_signed_in(name, address)  # first: a sign-in that cannot be recorded must not be known
            self._known_basic[digest] = (name, self._clock.monotonic() + _BASIC_SECONDS)
        return Principal(name, self._users[name].role)

    def is_local(self, header: str) -> bool:
        """Whether ``Authorization: Bearer …`` proves that the caller may read the node's folder.

        Such a program may look, and act on nothing.
        """
        token = header.partition(" ")[2].strip().encode("utf-8", "replace")
        return hmac.compare_digest(token_of(self._key).encode(), token)

    def _check(self, name: str, password: str, address: str) -> None:
        user = self._users.get(name)
        try:
            with self._sign_in_limiter.turn(address):
                self._sign_in_limiter.require(address)
                right = _is_password(password, user.password if user else self._decoy) if self._decoy else False
                if is_wrong := user is None or not right:
                    self._sign_in_limiter.count(address)
        except TooManySignInsError:
            self._audit.failed(name if user else UNKNOWN, address, f"the address is blocked for {BLOCK_SECONDS:.0f} s")
            raise
        if is_wrong:
            self._audit.failed(name if user else UNKNOWN, address, "wrong password" if user else "no such user")
            raise AuthenticationError("wrong user name or password")

    def _fingerprint(self, name: str) -> str:
        user = self._users.get(name)
        return hashlib.sha256(user.password.encode()).hexdigest() if user else ""

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._session_key, "\0".join(parts).encode(), "sha256").hexdigest()


def check_address(settings: ConsoleSettings, host: str) -> None:
    """Raise :class:`MissingUsersError` if other machines could reach *host* without a sign-in."""
    if not settings.users and not is_loopback(host):
        raise MissingUsersError(
            f"the console needs users to listen on {host}: create a user with `millstream config user NAME` and "
            "add the output to the settings, or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether *host* (a name or an address) is this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_password(password: str, hashed: str) -> bool:
    """:func:`is_password`, of few at a time. Raises :class:`SignInsBusyError`."""
    if not _hashers.acquire(timeout=_HASHER_SECONDS):
        raise SignInsBusyError
    try:
        return is_password(password, hashed)
    finally:
        _hashers.release()


def _is_equal(expected: str, given: str) -> bool:
    """Whether the signature *given* is the *expected* one; takes equally long wherever they differ."""
    return hmac.compare_digest(expected, given.encode("ascii", "replace").decode("ascii"))


class _SignInLimiter:
    """Counts wrong passwords by address, or by network where a client may have many addresses; the last one last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: dict[str, list[float]] = {}
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    def turn(self, address: str) -> threading.Lock:
        """To be held from :meth:`require` to :meth:`count`: otherwise an address has as many guesses as there are
        threads. Some addresses share one."""
        return self._turns[hash(client_network(address)) % _TURNS]

    def require(self, address: str) -> None:
        address = client_network(address)
        with self._lock:
            now = self._clock.monotonic()
            recent = [at for at in self._wrong.get(address, ()) if at > now - BLOCK_SECONDS]
            if len(recent) >= MAX_FAILED_SIGN_INS:
                raise TooManySignInsError

    def count(self, address: str) -> None:
        address = client_network(address)
        with self._lock:
            now = self._clock.monotonic()
            recent = [at for at in self._wrong.pop(address, ()) if at > now - BLOCK_SECONDS]
            if len(self._wrong) >= _REMEMBERED_GUESSES:
                del self._wrong[next(iter(self._wrong))]
            self._wrong[address] = [*recent, now][-MAX_FAILED_SIGN_INS:]


def _load_key(path: Path) -> bytes:
    """The key in *path*, which no other user of the machine may read; created if missing, or if the process that
    created the file was killed before it wrote the key."""
    key = path.read_bytes() if path.exists() else b""
    if not key:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with file_lock(path):
            key = path.read_bytes() or _write_key(path)
    if len(key) != KEY_BYTES:
        raise AuthenticationError(
            f"{path} does not contain a key of {KEY_BYTES} bytes: delete the file, and start the node again; "
            "all users must then sign in again"
        )
    return key


def _write_key(path: Path) -> bytes:
    """Write a new key into the empty file *path*."""
    key = secrets.token_bytes(KEY_BYTES)
    with path.open("r+b") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return key
