# ruff: noqa: INP001  (a script beside what it explains, not a package)
"""Freezes today's rules as an old policy, before a rule is changed: `python docs/contributing/freeze_policy.py`.

Copies what decides to `domain/policies/<policy>/`, its imports rewritten, and adds it to `domain/policies/frozen.py`. Then change
the rules, and POLICY in `domain/master/state.py`. See freeze-a-policy.md.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = (
    "domain/master",
    "domain/fixed.py",
    "domain/estimates.py",
    "domain/control/settings.py",
    "domain/catalogue/eligibility.py",
)
"""All that a decision depends on, but for the events themselves, whose fields are only ever added."""
SHARED = ("inputs",)
"""Modules of domain/master that are not copied: the reader makes these values, for every policy alike."""


def policy_name(root: Path = ROOT) -> str:
    """Return the policy of the rules as they are."""
    found = re.search(r'^POLICY: Final = "([a-z0-9-]+)"$', (root / "domain/master/state.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit('domain/master/state.py: must say POLICY: Final = "..."')
    return found[1]


def freeze(into: Path, package: str, root: Path = ROOT) -> list[Path]:
    """Copy the rules to the folder `into`, which is the package `package`; return the files made."""
    made = [_write(into / "__init__.py", '"""Rules of another time, frozen: nothing here is ever edited."""\n')]
    for rule in RULES:
        for source in sorted((root / rule).glob("*.py")) if (root / rule).is_dir() else [root / rule]:
            if source.parent.name == "master" and source.stem in SHARED:
                continue
            target = into / "master" / source.name if rule == "domain/master" else into / source.name
            made.append(_write(target, rewritten(source.read_text(), package)))
    return made


def rewritten(text: str, package: str) -> str:
    """Return a module's text with its imports of rules turned to the frozen ones."""
    kept = "|".join(SHARED)
    text = re.sub(rf"\bdomain\.master\b(?!\.({kept})\b)", f"{package}.master", text)
    text = re.sub(rf"^from domain import ({_alone()})$", rf"from {package} import \1", text, flags=re.MULTILINE)
    text = re.sub(rf"\bdomain\.({_alone()})\b", rf"{package}.\1", text)
    text = re.sub(r"\bdomain\.control\.settings\b", f"{package}.settings", text)
    return re.sub(r"\bdomain\.catalogue\.eligibility\b", f"{package}.eligibility", text)


def _alone() -> str:
    return "|".join(Path(rule).stem for rule in RULES if rule.count("/") == 1 and rule.endswith(".py"))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def main() -> None:
    """Freeze the rules of this checkout."""
    name = policy_name()
    folder = name.replace("-", "_")
    into = ROOT / "domain/policies" / folder
    if into.exists():
        raise SystemExit(f"{into.relative_to(ROOT)}: is there already; a frozen policy is never made anew")
    made = freeze(into, f"domain.policies.{folder}")
    listed = ROOT / "domain/policies/frozen.py"
    text = listed.read_text()
    text = text.replace(
        "from typing import Any, Final\n",
        f"from typing import Any, Final\n\nfrom domain.policies.{folder}.master import state as {folder}_state\n"
        f"from domain.policies.{folder}.master import step as {folder}_step\n",
        1,
    )
    line = f"    ({folder}_state, {folder}_step),\n"
    text = text.replace("= ()\n", f"= (\n{line})\n") if "= ()\n" in text else text.replace("\n)\n", f"\n{line})\n")
    listed.write_text(text)
    sys.stdout.write(
        f"{name}: {len(made)} files in {into.relative_to(ROOT)}; now change the rules, and POLICY with them\n"
    )


if __name__ == "__main__":
    main()
