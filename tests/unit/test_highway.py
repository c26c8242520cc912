"""The checksum of nats-server's block files, which a forger at the disk mends."""

import pytest

from tests.mutations.highway import highway_64

PUBLISHED = {0: "907a56de22c26e53", 1: "7eab43aac7cddd78", 2: "b8d0569ab0b53d62", 3: "5c6befab8a463d80"}


@pytest.mark.parametrize("length", PUBLISHED)
def test_it_is_the_hash_that_its_authors_publish(length: int):
    assert highway_64(bytes(range(32)), bytes(range(length)))[::-1].hex() == PUBLISHED[length]
