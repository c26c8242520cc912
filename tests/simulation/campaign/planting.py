"""How a bug is planted: a method is replaced while a run lasts; the product has no switch for it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


class Swap(msgspec.Struct, frozen=True):
    """One function to be replaced: `change(original)` takes its place."""

    target: Any
    name: str
    change: Change


class Bug(msgspec.Struct, frozen=True):
    """A mistake that could be in the product."""

    about: str
    swaps: tuple[Swap, ...]


BUGS: dict[str, Bug] = {}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while this lasts; an empty name plants none."""
    with ExitStack() as stack:
        for swap in BUGS[name].swaps if name else ():
            stack.enter_context(_swapped(swap))
        yield


@contextmanager
def _swapped(swap: Swap) -> Iterator[None]:
    original = getattr(swap.target, swap.name)
    setattr(swap.target, swap.name, swap.change(original))
    try:
        yield
    finally:
        setattr(swap.target, swap.name, original)


def bug(name: str, about: str, *swaps: Swap) -> None:
    BUGS[name] = Bug(about, swaps)


def nothing(_original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_arguments, **_options: None


def without(kind: type) -> Change:
    """Let a method that appends to `out` append nothing of a kind."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            out = next(each for each in (*arguments, *options.values()) if isinstance(each, list))
            before = len(out)
            result = original(self, *arguments, **options)
            out[before:] = [each for each in out[before:] if not isinstance(each, kind)]
            return result

        return method

    return change


def always(value: Any) -> Change:
    return lambda _original: lambda *_arguments, **_options: value
