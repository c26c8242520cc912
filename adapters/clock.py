"""The one reader of clock and dice. Everything else takes time and ids as arguments."""

import os
import secrets
import time

from domain.ids import Generation, Incarnation, RequestId


class SystemClock:
    """The machine's clocks (domain.ports.Clock)."""

    def monotonic_us(self) -> int:
        """Return the monotonic clock in microseconds."""
        return time.monotonic_ns() // 1000

    def wall_us(self) -> int:
        """Return microseconds since the epoch, UTC."""
        return time.time_ns() // 1000


def new_incarnation() -> Incarnation:
    """Return 16 random bytes in hex: a producer's identity for one life of its process."""
    return Incarnation(secrets.token_hex(16))


def new_request_id() -> RequestId:
    """Return `req_` and a UUIDv7 in hex: ids made later sort later (RFC 9562, section 5.7)."""
    stamp_ms = time.time_ns() // 1_000_000
    noise = int.from_bytes(os.urandom(10), "big")
    value = (
        (stamp_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | (noise >> 62 & 0xFFF) << 64 | 0b10 << 62 | noise & (1 << 62) - 1
    )
    return RequestId(f"req_{value:032x}")


def random_token(length_bytes: int = 16) -> str:
    """Return random bytes in hex, fit for a secret."""
    return secrets.token_hex(length_bytes)


def random_fraction() -> float:
    """Return a number in [0, 1) for jitter; never for a decision."""
    return secrets.randbelow(1 << 30) / (1 << 30)


def new_generation(count: int) -> Generation:
    """Return the name of history number `count`: 4 hex digits of the count, 4 random, so that later histories sort later."""
    return Generation(f"{count:04x}{secrets.token_hex(2)}")
