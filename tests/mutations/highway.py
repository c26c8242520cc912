"""HighwayHash-64, by which nats-server finds a damaged record: who can write to its disk can mend that too."""

from typing import Final

_M64: Final = (1 << 64) - 1
_M32: Final = (1 << 32) - 1
_INIT0: Final = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1: Final = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_PACKET: Final = 32
_ROUNDS: Final = 4


def highway_64(key: bytes, content: bytes) -> bytes:
    """Return the 8 bytes of the hash of `content` under a key of 32 bytes."""
    state = _State(key)
    whole = len(content) - len(content) % _PACKET
    for at in range(0, whole, _PACKET):
        state.update(content[at : at + _PACKET])
    if whole < len(content):
        state.update_rest(content[whole:])
    return state.finish()


def _turned(value: int) -> int:
    return ((value >> 32) | (value << 32)) & _M64


class _State:
    def __init__(self, key: bytes) -> None:
        lanes = [int.from_bytes(key[at : at + 8], "little") for at in range(0, 32, 8)]
        self.mul0, self.mul1 = list(_INIT0), list(_INIT1)
        self.v0 = [a ^ b for a, b in zip(self.mul0, lanes, strict=True)]
        self.v1 = [a ^ _turned(b) for a, b in zip(self.mul1, lanes, strict=True)]

    def update(self, packet: bytes) -> None:
        self._lanes([int.from_bytes(packet[at : at + 8], "little") for at in range(0, 32, 8)])

    def _lanes(self, lanes: list[int]) -> None:
        v0, v1, mul0, mul1 = self.v0, self.v1, self.mul0, self.mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + lanes[i]) & _M64
            mul0[i] ^= (v1[i] & _M32) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _M64
            mul1[i] ^= (v0[i] & _M32) * (v1[i] >> 32)
        _zip_add(v0, v1)
        _zip_add(v1, v0)

    def update_rest(self, rest: bytes) -> None:
        size = len(rest)
        self.v0 = [(each + (size << 32) + size) & _M64 for each in self.v0]
        self.v1 = [_each_half_turned(each, size) for each in self.v1]
        packet, words, odd = bytearray(_PACKET), size & ~3, size & 3
        packet[:words] = rest[:words]
        if size & 16:
            packet[28:32] = rest[size - 4 :]
        elif odd:
            left = rest[words:]
            packet[16], packet[17], packet[18] = left[0], left[odd >> 1], left[odd - 1]
        self.update(bytes(packet))

    def finish(self) -> bytes:
        for _ in range(_ROUNDS):
            v0 = self.v0
            self._lanes([_turned(v0[2]), _turned(v0[3]), _turned(v0[0]), _turned(v0[1])])
        return ((self.v0[0] + self.v1[0] + self.mul0[0] + self.mul1[0]) & _M64).to_bytes(8, "little")


def _each_half_turned(value: int, by: int) -> int:
    low, high = value & _M32, value >> 32
    low, high = ((low << by) | (low >> (32 - by))) & _M32, ((high << by) | (high >> (32 - by))) & _M32
    return (high << 32) | low


def _zip_add(into: list[int], of: list[int]) -> None:
    """Add to pairs of lanes the bytes of others, shuffled."""
    for at in (0, 2):
        low, high = of[at], of[at + 1]
        into[at] = (
            into[at]
            + (
                (((low & 0xFF000000) | (high & 0xFF00000000)) >> 24)
                | (((low & 0xFF0000000000) | (high & 0xFF000000000000)) >> 16)
                | (low & 0xFF0000)
                | ((low & 0xFF00) << 32)
                | ((high & 0xFF00000000000000) >> 8)
                | ((low << 56) & _M64)
            )
        ) & _M64
        into[at + 1] = (
            into[at + 1]
            + (
                (((high & 0xFF000000) | (low & 0xFF00000000)) >> 24)
                | (high & 0xFF0000)
                | ((high & 0xFF0000000000) >> 16)
                | ((high & 0xFF00) << 24)
                | ((low & 0xFF000000000000) >> 8)
                | ((high & 0xFF) << 48)
                | (low & 0xFF00000000000000)
            )
        ) & _M64
