"""Which reasons the machines and the node can state: read from the places in the code where they are given as literals."""

import ast
from collections.abc import Iterator
from typing import Final

from tests.support.tidy import ROOT, modules

_FOLDERS: Final = ("domain/owner", "domain/helper", "services/node")
_FILES: Final = ("domain/engine_room.py", "domain/machines.py", "domain/runtime.py")

_HANDED_BACK: Final = ("returned", "borrowed_returned")
_GIVEN: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "hand_back_unstarted": (0, _HANDED_BACK),
    "_hand_back": (1, _HANDED_BACK),
    "_returned": (1, ("borrowed_returned",)),
    "lend_returned": (2, ("returned",)),
    "lend_refused": (2, ("relay_refused",)),
    "LendFailure": (-1, ("cut_off",)),
    "_cut_off": (1, ("cut_off",)),
    "cut_off": (3, ("cut_off",)),
    "_refused": (1, ("lease_refused",)),
    "LeaseRefused": (-1, ("lease_refused",)),
    "LoadFailed": (-1, ("load_failed",)),
    "RestoreCancelled": (-1, ("restore_cancelled",)),
    "_forget_restore": (0, ("restore_cancelled",)),
}
"""Function or fact -> which argument is the reason (else it is the one named `reason`), and the kinds of rows it is for."""
_RETURNED: Final[dict[str, tuple[str, ...]]] = {
    "why_closed": ("not_accepting", *_HANDED_BACK),
    "_why_closed": ("not_accepting", *_HANDED_BACK),
    "why_not_loaded": _HANDED_BACK,
}
"""Function that returns a reason -> the kinds of rows it is for."""


def said() -> dict[str, set[str]]:
    """Return kind of row -> every reason that code gives for it."""
    found: dict[str, set[str]] = {}
    for path in modules(*_FOLDERS, *_FILES):
        for kinds, reason in _reasons(ast.parse(path.read_text())):
            for kind in kinds:
                found.setdefault(kind, set()).add(reason)
    # a lend without a live lease is refused (403), not returned: its owner states relay_refused
    found["returned"].discard("no_live_lease")
    return found


def _reasons(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (given := _GIVEN.get(_name(node.func))) is not None:
            yield from ((given[1], reason) for reason in _literals(_reason_of(node, given[0])))
        elif isinstance(node, ast.FunctionDef) and (kinds := _RETURNED.get(node.name)) is not None:
            returns = (each.value for each in ast.walk(node) if isinstance(each, ast.Return))
            yield from ((kinds, reason) for value in returns for reason in _literals(value))


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _reason_of(call: ast.Call, position: int) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "reason"), None)
    return named or (call.args[position] if 0 <= position < len(call.args) else None)


def _literals(value: ast.expr | None) -> Iterator[str]:
    """Yield the texts that an expression may become; none where it is made of other values."""
    match value:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.IfExp():
            yield from (*_literals(value.body), *_literals(value.orelse))
        case ast.BoolOp():
            for each in value.values:
                yield from _literals(each)
        case _:
            return


assert all((ROOT / name).exists() for name in (*_FOLDERS, *_FILES)), "the places that are read have moved"
