"""Pages as HTML, from the templates beside this module."""

from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from services.console.pages import Page
from services.texts.plain import cell, printable

STYLE: Final = (files(__package__) / "style.css").read_text(encoding="utf-8")


class Renderer:
    """Makes the text of pages. Whatever comes from outside is escaped, and shows nothing that a reader cannot see."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader(__package__, "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_seen,
        )
        self._templates.globals["cell"] = cell
        for name in self._templates.list_templates():  # one that is broken is to be known at the start
            self._templates.get_template(name)

    def text(self, page: Page, *, path: str) -> str:
        """Return a page as HTML; `path` is where it stands."""
        return self._templates.get_template(f"{page.template}.html").render(page=page, path=path, **page.more)


def _seen(value: Any) -> Any:
    """Return a value as it is shown: without characters that turn a line round, or are not seen at all."""
    return (
        "\n".join(map(printable, value.split("\n")))
        if isinstance(value, str) and not hasattr(value, "__html__")
        else value
    )
