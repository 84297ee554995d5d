"""What was built is looked through: it loads nothing from elsewhere, and no link in it leads nowhere.

Each finding is a warning, which a strict build does not pass.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig

_LOG: Final = logging.getLogger("mkdocs.hooks.self_contained")
_TAG: Final = re.compile(r"<(\w+)\b[^>]*?\s(src|href)=(\"[^\"]*\"|[^\s>]+)")
_LINKS: Final = ("a", "area")
"""Elements that load nothing by themselves."""


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of everything that is wrong with the site."""
    for finding in findings(Path(config.site_dir)):
        _LOG.warning(finding)


def findings(site: Path) -> Iterator[str]:
    """Yield what is wrong with a site, each with the page that it is in."""
    for page in sorted(site.rglob("*.html")):
        # Pages that are shown for what does not exist have absolute addresses.
        if page.name == "404.html":
            continue
        for tag, _, quoted in _TAG.findall(page.read_text(encoding="utf-8")):
            address = urlsplit(quoted.strip('"'))
            if address.scheme in ("http", "https") or address.netloc:
                if tag not in _LINKS:
                    yield f"{page.relative_to(site)}: <{tag}> loads {address.geturl()}"
            elif not address.scheme and address.path and not (page.parent / unquote(address.path)).exists():
                yield f"{page.relative_to(site)}: {address.geturl()} leads nowhere"
