"""The stored values of `cluster.*` settings: one aggregate, `settings.cluster`.

Two layers: what the configuration file states, and what operators override it with. What holds is the override, else what is
stated, else the default. The file's values are events as well, since whoever decides must decide by the same values as everybody
else, and again when the history is replayed.

Events used: SettingChanged and SettingCleared (the override), SettingStated and SettingUnstated (the file). They are stored under
the full name (`cluster.offload_streams`), the state has bare ones; names, ranges and units are in domain.control.settings.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, assert_never

import msgspec

from domain.control.settings import PREFIX, checked_value, setting_of
from domain.events.control import SettingChanged, SettingCleared, SettingStated, SettingUnstated

AGGREGATE: Final = "settings.cluster"
SettingEvent = SettingChanged | SettingCleared | SettingStated | SettingUnstated
Values = Mapping[str, int]
"""Value by bare name, in the settings' own units."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about the settings."""

    overrides: Values = MappingProxyType({})
    """What was changed and not cleared since."""
    stated: Values = MappingProxyType({})
    """What the configuration file states."""


INITIAL: Final = Stored()


def evolve(state: Stored, event: SettingEvent) -> Stored:
    """Return the settings after `event`. It never refuses: a name of an older release is kept as it is."""
    name = event.name.removeprefix(PREFIX)
    match event:
        case SettingChanged():
            return msgspec.structs.replace(state, overrides={**state.overrides, name: event.value})
        case SettingCleared():
            return msgspec.structs.replace(state, overrides=_without(state.overrides, name))
        case SettingStated():
            return msgspec.structs.replace(state, stated={**state.stated, name: event.value})
        case SettingUnstated():
            return msgspec.structs.replace(state, stated=_without(state.stated, name))
        case _:
            assert_never(event)


class ChangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Override settings, all of them or none. Values are in the settings' own units."""

    values: Values


class ClearSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Drop overrides, all of them or none: the file's value or the default holds again."""

    names: tuple[str, ...]


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """Say what the configuration file states, the whole of it: what it does not name, it states no more."""

    values: Values


SettingCommand = ChangeSettings | ClearSettings | StateFile


def decide(command: SettingCommand, state: Stored) -> list[SettingEvent]:
    """Return what `command` makes happen, in order of name. An empty list means that it asks for what already is.

    Raises:
        BadSettingError: a name is unknown or a value outside its range; then none of the batch is changed.
    """
    match command:
        case ChangeSettings(values=values):
            changed = _new(_checked(values), state.overrides)
            return [SettingChanged(name=PREFIX + name, value=value) for name, value in changed.items()]
        case ClearSettings(names=names):
            bare = {name.removeprefix(PREFIX) for name in names}
            # A stored name that this release does not know may still be cleared.
            known = {name if name in state.overrides else setting_of(name).name for name in bare}
            return [SettingCleared(name=PREFIX + name) for name in sorted(known & state.overrides.keys())]
        case StateFile(values=values):
            wanted = _checked(values)
            stated = [
                SettingStated(name=PREFIX + name, value=value) for name, value in _new(wanted, state.stated).items()
            ]
            gone = [SettingUnstated(name=PREFIX + name) for name in state.stated if name not in wanted]
            return sorted((*stated, *gone), key=lambda event: event.name)
        case _:
            assert_never(command)


def _checked(values: Values) -> dict[str, int]:
    """Return `values` by bare name, in order of name.

    Raises:
        BadSettingError: a name is unknown, or a value outside its range.
    """
    named = [(setting_of(name), value) for name, value in values.items()]
    return dict(sorted((setting.name, checked_value(setting, value)) for setting, value in named))


def _new(wanted: Values, current: Values) -> dict[str, int]:
    return {name: value for name, value in wanted.items() if current.get(name) != value}


def _without(values: Values, gone: str) -> dict[str, int]:
    return {name: value for name, value in values.items() if name != gone}
