"""The stored overrides of `cluster.*` settings: one aggregate, `settings.cluster`.

Events used: SettingChanged and SettingCleared. They are stored under the full name (`cluster.offload_streams`), the state has
bare ones; names, ranges and units are in domain.control.settings.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, assert_never

import msgspec

from domain.control.settings import PREFIX, checked_value, setting_of
from domain.events.control import SettingChanged, SettingCleared

AGGREGATE: Final = "settings.cluster"
SettingEvent = SettingChanged | SettingCleared
Overrides = Mapping[str, int]
"""Value by bare name, for what was changed and not cleared since."""

INITIAL: Final[Overrides] = MappingProxyType({})


def evolve(state: Overrides, event: SettingEvent) -> Overrides:
    """Return the overrides after `event`. It never refuses: a name of an older release is kept as it is."""
    changed = event.name.removeprefix(PREFIX)
    others = {name: value for name, value in state.items() if name != changed}
    match event:
        case SettingChanged():
            return {**others, changed: event.value}
        case SettingCleared():
            return others
        case _:
            assert_never(event)


class ChangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Override settings, all of them or none. Values are in the settings' own units."""

    values: Mapping[str, int]


class ClearSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Drop overrides: the file's value or the default holds again."""

    names: tuple[str, ...]


SettingCommand = ChangeSettings | ClearSettings


def decide(command: SettingCommand, state: Overrides) -> list[SettingEvent]:
    """Return what `command` makes happen, in order of name. An empty list means that it asks for what already is.

    Raises:
        BadSettingError: a name is unknown or a value outside its range; then none of the batch is changed.
    """
    match command:
        case ChangeSettings():
            named = [(setting_of(name), value) for name, value in command.values.items()]
            wanted = {setting.name: checked_value(setting, value) for setting, value in named}
            return [
                SettingChanged(name=PREFIX + name, value=wanted[name])
                for name in sorted(wanted)
                if state.get(name) != wanted[name]
            ]
        case ClearSettings():
            stored = {name.removeprefix(PREFIX) for name in command.names}
            # A stored name that this release does not know may still be cleared.
            known = {name if name in state else setting_of(name).name for name in stored}
            return [SettingCleared(name=PREFIX + name) for name in sorted(known) if name in state]
        case _:
            assert_never(command)
