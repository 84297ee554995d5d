"""The reference of the command line, made of the commands themselves: every verb with all of its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from coordinator.cli.verbs import cli

PAGE: Final = "command-line.md"
MARK: Final = "<!-- verbs -->"
_CODE: Final = re.compile(r"'((?:recfleet|pip) [^']*)'|(?<![\w'-])(--?[a-z][\w-]*)|([\\`*_<>\[\]|])")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the reference where the page has its mark."""
    return markdown.replace(MARK, reference()) if page.file.src_uri == PAGE else markdown


def reference() -> str:
    """Return the reference of all verbs as Markdown."""
    context = click.Context(cli, info_name="recfleet")
    return "\n".join(line for verb in cli.commands.values() for line in _verb(verb, context, level=2))


def _verb(command: click.Command, parent: click.Context, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    yield f"{'#' * level} {context.command_path}\n"
    if not isinstance(command, click.Group):
        yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    for paragraph in (command.help or "").split("\n\n"):
        yield f"{_prose(paragraph)}\n"
    records = [one for param in command.params if (one := param.get_help_record(context)) and one[1]]
    if records:
        yield "| option | what it does |\n| --- | --- |"
        yield from (f"| `{names}` | {_prose(text)} |" for names, text in records)
        yield ""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _verb(inner, context, level + 1)


def _prose(text: str) -> str:
    """Return the text of a help as Markdown: commands and options as code, nothing else as markup."""

    def marked(found: re.Match[str]) -> str:
        command, option, sign = found.groups()
        return f"&#{ord(sign)};" if sign else f"`{command or option}`"

    return _CODE.sub(marked, " ".join(text.replace("\b", "").split()))
