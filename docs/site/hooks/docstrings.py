"""Roles of docstrings, ``:func:`run```, as plain code in the reference of the API."""

from __future__ import annotations

import re
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(<code>)~?([\w.]+\.)?(\w+)(</code>)")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave the name of what a role refers to, without the module that it lies in."""
    return _ROLE.sub(r"\1\3\4", html)
