"""Where a stream goes on after messages that it no longer has."""

from domain.ports import Stream


async def next_after(stream: Stream, missing: int, last: int) -> int:
    """Return the first sequence after a hole that holds `missing`, or `last` + 1; holes are long, so steps double, then halve."""
    step = 1
    while missing + step <= last and await stream.get(missing + step) is None:
        missing, step = missing + step, step * 2
    low, high = missing + 1, min(missing + step, last + 1)
    while low < high:
        middle = (low + high) // 2
        if await stream.get(middle) is None:
            low = middle + 1
        else:
            high = middle
    return low
