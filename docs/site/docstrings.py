"""How docstrings of this project are read for the reference of the API."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_ENTRY: Final = re.compile(r"^(\w[\w, *]*) : (.+)$", re.MULTILINE)
_ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?(?:[\w.]+\.)?(\w+)`")


class PlainDocstrings(griffe.Extension):
    """Reads ``name : what it is`` as a description; numpy's style has a type there, which signatures have.

    Of a role, ``:func:`recfleet.run```, the last name is left, as code.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _ENTRY.sub(r"\1\n    \2", text)
