# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes settings.md from the table of settings, or with --check tells whether it is current.

Run `.venv/bin/python docs/reference/settings.py` after changing a setting.
"""

import sys
from pathlib import Path

from domain.control.settings import PREFIX, SETTINGS, Setting, show_value

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Settings

Made by `docs/reference/settings.py` from `domain/control/settings.py`. Settings hold for the whole cluster, are events, and may
change while it runs: nothing has to be restarted.

What holds is the operator's **override**, else what the configuration **file** states, else the **default**; `leaseway settings
list` says which.

```text
leaseway settings set offload_lease_ttl=20s offload_streams=off     all of them, or with one bad value none
leaseway settings clear offload_lease_ttl                           the file's value holds again, else the default
```

The file states them in a table of its own. `leaseway up`, when it starts, and `leaseway provision` tell the cluster what the
whole table says now; a name that it says no more falls back to its default, and a file with a bad value states nothing. Where
neither finds a file, what was stated stays. On several machines it is the file on the machine with the operator's key that
counts.

```toml
[cluster.settings]
offload_lease_ttl = "20s"
offload_streams = false
```

People write durations with their unit (`90s`, `1.5s`, `30d`) and switches as `on` or `off`; events carry microseconds (us), and
1 or 0. The prefix `cluster.` may be left out.

| setting | default | range | unit stored | what it is |
|---|---|---|---|---|
"""


def main() -> int:
    """Write or check the page; return the exit code."""
    made = HEAD + "".join(row(setting) for setting in SETTINGS.values())
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
            sys.stderr.write(
                "docs/reference/settings.md is not current; run: .venv/bin/python docs/reference/settings.py\n"
            )
            return 1
    else:
        PAGE.write_text(made, encoding="utf-8")
    return 0


def row(setting: Setting) -> str:
    """Return one setting as a row."""
    default, low, high = (show_value(setting, value) for value in (setting.default, setting.minimum, setting.maximum))
    return f"| `{PREFIX}{setting.name}` | {default} | {low} to {high} | {setting.unit} | {setting.about} |\n"


if __name__ == "__main__":
    sys.exit(main())
