"""Files of the repository that pages link to, as pages of the site.

A link to a file outside ``docs`` works on a code host; in the site it leads to a page below ``repository``,
which has its text. So the site needs no host, and works from the disk.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[3]
DOCS: Final = "docs/"
FOLDER: Final = "repository/"
_LINK: Final = re.compile(r"(?<=\]\()(?P<target>[^()\s#:]+)(?=(?:#[^()\s]*)?\))")
_LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file that is linked to, directly or from such a page."""
    to_read = [DOCS + file.src_uri for file in files.documentation_pages()]
    seen = set(to_read)
    while to_read:
        page = to_read.pop()
        for target in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            path = _resolved(page, target)
            if path in seen or _is_of_the_site(path) or not (ROOT / path).is_file():
                continue
            seen.add(path)
            files.append(File.generated(config, page_of(path), content=_text_of(path)))
            if path.endswith(".md"):
                to_read.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave ``docs``, or come from outside it, to pages of the site."""
    here = page.file.src_uri
    source = here.removeprefix(FOLDER) if here.startswith(FOLDER) else DOCS + here

    def moved(link: re.Match[str]) -> str:
        path = _resolved(source, link["target"])
        within = path.removeprefix(DOCS) if _is_of_the_site(path) else page_of(path)
        if files.get_file_from_path(within) is None:
            return link["target"]
        return posixpath.relpath(within, posixpath.dirname(here) or ".")

    return _LINK.sub(moved, markdown)


def page_of(path: str) -> str:
    """Return the page of a file outside ``docs``; both paths are relative to their roots."""
    return FOLDER + (path if path.endswith(".md") else f"{path}.md")


def _is_of_the_site(path: str) -> bool:
    return path.startswith(DOCS) and not path.startswith(f"{DOCS}site/")


def _resolved(page: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _text_of(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n~~~~{language}\n{text}\n~~~~\n"
