"""`leaseway settings list | set | clear`: the settings of the whole cluster."""

import argparse
from collections.abc import Collection, Sequence

from domain.control.settings import SETTINGS, parse_value, setting_of, show_value
from domain.control.view import ControlView
from domain.errors import BadSettingError
from services.cli.desk import desk_of
from services.cli.reach import here
from services.cli.show import Output
from services.lifecycle import EXIT_OK
from services.texts.plain import Row

_COLUMNS = {
    "name": "setting", "shown": "value", "source": "from", "default": "default", "range": "range", "about": "what it is",
}  # fmt: skip
_CHANGED = {"name": "setting", "shown": "value", "source": "from", "changed": "changed"}


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked and print the setting or the settings."""
    out = Output(as_json=parsed.json)
    if parsed.action == "list":
        with desk_of(here(parsed)) as desk:
            view = desk.view()
        out.rows("Settings", [_row(view, name) for name in SETTINGS], _COLUMNS)
        return EXIT_OK
    # what is wrong with the words is told before anything is asked of the bus
    values = changes_of(parsed.changes) if parsed.action == "set" else {}
    names = sorted(values or {name.removeprefix("cluster.") for name in parsed.names})
    with desk_of(here(parsed)) as desk:
        events = desk.set_settings(values) if parsed.action == "set" else desk.clear_settings(names)
        view = desk.view()
    changed = {event.name.removeprefix("cluster.") for event in events}
    out.rows("Settings", [_changed_row(view, name, changed) for name in names], _CHANGED)
    return EXIT_OK


def changes_of(words: Sequence[str]) -> dict[str, int]:
    """Return the settings that `NAME=VALUE` words ask for, by bare name and in their own units.

    Raises:
        BadSettingError: one of them is no such word, unknown, out of range, or said twice.
    """
    values: dict[str, int] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadSettingError(f"setting {word[:80]!r}: must be NAME=VALUE, such as offload_lease_ttl=20s")
        setting = setting_of(name)
        if setting.name in values:
            raise BadSettingError(f"setting {setting.name}: must be stated once only")
        values[setting.name] = parse_value(setting, text)
    return values


def _row(view: ControlView, name: str) -> Row:
    setting, value = SETTINGS[name], view.setting(name)
    return {
        "name": name,
        "value": value,
        "unit": setting.unit,
        "shown": show_value(setting, value),
        "source": view.source(name),
        "default": show_value(setting, setting.default),
        "range": f"{show_value(setting, setting.minimum)} to {show_value(setting, setting.maximum)}",
        "about": setting.about,
    }


def _changed_row(view: ControlView, name: str, changed: Collection[str]) -> Row:
    if name not in SETTINGS:  # of an older release
        return {"name": name, "value": None, "shown": "", "source": "", "changed": name in changed}
    return {**_row(view, name), "changed": name in changed}
