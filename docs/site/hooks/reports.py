"""The reports of the gallery: the commands of the page are run, and the site shows what they make."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGE: Final = "gallery.md"
FOLDER: Final = "reports/"
_COMMANDS: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK: Final = re.compile(r"^<!-- report: (\S+) -->$", re.MULTILINE)
_HELD_OR_MISSED: Final = (0, 3)
_BUILT_WITH: Final = f'recfleet() {{ "{sys.executable}" -m recfleet "$@"; }}\n'
"""The recfleet of the Python that builds the site, in the shell of a command."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports that the page names."""
    page = files.get_file_from_path(PAGE)
    if page is None:
        raise PluginError(f"{PAGE} is gone; take hooks/reports.py out of docs/site/mkdocs.yml, too")
    text = page.content_string
    made = _made_by(tuple(_COMMANDS.findall(text)))
    for report in _MARK.findall(text):
        if not (made / report).is_file():
            raise PluginError(f"{PAGE}: the commands of the page do not make {report}")
        files.append(File.generated(config, address_of(report), abs_src_path=str(made / report)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show a report where the page has its mark."""
    if page.file.src_uri != PAGE:
        return markdown

    def shown(mark: re.Match[str]) -> str:
        address = escape(address_of(mark[1]))
        frame = f'<iframe src="{address}" title="{escape(mark[1])}" loading="lazy" tabindex="-1"></iframe>'
        return f'<div class="report">{frame}</div>\n\n<a href="{address}">Open the report</a>'

    return _MARK.sub(shown, markdown)


def address_of(report: str) -> str:
    """Return where a report lies in the site, by its path in the folder of the page's commands."""
    parts = Path(report).parts
    return f"{FOLDER}{parts[-1] if len(parts) == 1 else f'{parts[-2]}.html'}"


@cache
def _made_by(blocks: tuple[str, ...]) -> Path:
    """Run blocks of commands in a folder of their own, once; return it."""
    folder = Path(tempfile.mkdtemp(prefix="gallery-"))
    atexit.register(shutil.rmtree, folder)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for line in "".join(blocks).splitlines():
        done = subprocess.run(
            ["bash", "-c", _BUILT_WITH + line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in _HELD_OR_MISSED:
            raise PluginError(f"{PAGE}: {line}\nends with {done.returncode}\n{done.stderr}")
    return folder
