"""Keys and what is made with them: HMAC for a node's facts, ed25519 for the master's decisions and a node's lends.

A process' secrets are one file of mode 0600 (`Credentials`); nothing here ever prints one.
"""

import base64
import hashlib
import hmac
import os
from pathlib import Path

import msgspec
import nkeys
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from domain.errors import BadConfigError, NotYetError


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What one process needs in order to speak: its identity on the bus and its signing keys."""

    name: str
    """Node id, or master, projector, gateway-<id>, operator."""
    role: str
    """node, gateway, master, projector, operator or observer."""
    cluster: str
    nkey_seed: str
    """Its nkey seed (`SU...`): signs it in to NATS, and signs a node's lends."""
    mac_key: str = ""
    """Hex; the HMAC key of its facts (nodes and gateways)."""
    cluster_mac_secret: str = ""
    """Hex; master and operator only: every node's mac key is derived from it."""
    master_seed: str = ""
    """nkey seed that signs decisions; master only."""
    master_public: str = ""
    """nkey public key (`U...`) that decisions are checked with."""
    operator_public: str = ""
    """nkey public key of the operator, with which the word is checked that ends safe mode; master only."""

    def __repr__(self) -> str:
        """Name without secrets, so that a log line or a traceback gives none away."""
        return f"Credentials(name={self.name!r}, role={self.role!r}, cluster={self.cluster!r})"


def save_credentials(path: Path, credentials: Credentials) -> None:
    """Write `credentials` so that only this user can read them, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(credentials))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load_credentials(path: Path) -> Credentials:
    """Return the credentials in `path`.

    Raises:
        NotYetError: there is no such file.
        BadConfigError: others can read it, or it is not a credentials file.
    """
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise BadConfigError(f"credentials {path}: must be readable by its owner alone (0600), mode is {mode:04o}")
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        raise NotYetError(f"credentials {path}: no such file; `leaseway provision` makes it") from None
    except msgspec.DecodeError as error:
        raise BadConfigError(f"credentials {path}: not a credentials file: {error}") from None


def derive_mac_key(cluster_mac_secret: str, name: str) -> str:
    """Return the HMAC key (hex) of the node or gateway `name`, so that the master needs no table of keys."""
    return hmac.new(bytes.fromhex(cluster_mac_secret), b"leaseway/mac/1|" + name.encode(), hashlib.sha256).hexdigest()


def mac(key: bytes, covered: bytes) -> str:
    """Return HMAC-SHA256 of `covered` in hex."""
    return hmac.new(key, covered, hashlib.sha256).hexdigest()


def mac_matches(key: bytes, covered: bytes, tag: str) -> bool:
    """Tell whether `tag` is the HMAC of `covered`, in constant time."""
    return hmac.compare_digest(mac(key, covered), tag)


def new_nkey() -> tuple[str, str]:
    """Return (seed, public key) of a new user nkey."""
    pair = nkeys.from_seed(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    return pair.seed.decode(), pair.public_key.decode()


class Signer:
    """Signs with an nkey seed (ed25519)."""

    def __init__(self, seed: str) -> None:
        self._pair = nkeys.from_seed(seed.encode())
        self.public = self._pair.public_key.decode()

    def sign(self, covered: bytes) -> str:
        """Return the signature of `covered` in hex."""
        signature: bytes = self._pair.sign(covered)
        return signature.hex()


class Verifier:
    """Checks signatures of one nkey public key."""

    def __init__(self, public: str) -> None:
        self.public = public
        self._key = VerifyKey(_raw_public(public))

    def verifies(self, covered: bytes, signature: str) -> bool:
        """Tell whether `signature` (hex, in the one form in which it is made) is this key's over `covered`."""
        try:
            signed = bytes.fromhex(signature)
            self._key.verify(covered, signed)
        except (ValueError, CryptoError):
            return False
        return signed.hex() == signature  # else whoever changed the case of a digit would have changed nothing


def _raw_public(public: str) -> bytes:
    """Return the 32 key bytes of a public user nkey: base32 of prefix (1), key (32) and CRC16 (2)."""
    try:
        decoded = base64.b32decode(public + "=" * (-len(public) % 8))
    except (ValueError, TypeError):
        decoded = b""
    if (
        len(decoded) != 35
        or decoded[0] != nkeys.PREFIX_BYTE_USER
        or nkeys.crc16_checksum(bytearray(decoded[:33])) != decoded[33:]
    ):
        raise BadConfigError(f"public key {public[:12]!r}: must be a user nkey (U and 55 more characters)")
    return decoded[1:33]
