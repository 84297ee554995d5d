"""What makes the site of the pages: hooks, and that both show the same. The build itself is a step of CI."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from markdown_it import MarkdownIt
from pages import DOCS, ELSEWHERE, PAGES, ROOT, SITE

import recfleet
from coordinator.cli.verbs import cli
from edge.core.plugins import KINDS

markdown = pytest.importorskip("markdown", reason="needs pip install 'recfleet[docs]'")
PluginError = pytest.importorskip(
    "mkdocs.exceptions", reason="needs pip install 'recfleet[docs]'"
).PluginError

COMPARED = (
    *("h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "tr", "th", "td"),
    *("pre", "code", "a", "img", "strong", "em", "blockquote"),
)
"""Elements of which both ways to read a page find as many."""


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SITE / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Elements(HTMLParser):
    """Counts elements, and gathers the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] += tag in COMPARED

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), *ELSEWHERE])
def test_a_page_reads_the_same_on_a_code_host_and_in_the_site(page: str) -> None:
    text = re.sub(r"^:::.*$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    host = Elements(MarkdownIt("commonmark").enable("table").render(text))
    site = Elements(markdown.markdown(text, extensions=["tables", "pymdownx.superfences"]))
    # The Markdown of the site wants lists and code in a list item indented by four.
    assert host.counts == site.counts
    assert host.text.split() == site.text.split()


def test_every_public_name_is_in_the_reference_of_the_api() -> None:
    named = re.findall(r"^::: recfleet\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(set(recfleet.__all__) - {"__version__"})


def test_base_classes_of_plug_ins_are_in_their_reference() -> None:
    text = (DOCS / "plugin-api.md").read_text(encoding="utf-8")
    names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    named = {pkgutil.resolve_name(name) for name in names if "torch" not in name}
    bases = [pkgutil.resolve_name(kind).base for kind in KINDS.values()]
    assert [base for base in bases if not any(issubclass(one, base) for one in named)] == []


def test_the_reference_of_the_command_line_has_every_verb_and_option() -> None:
    made = hook("command_line")
    assert made.MARK in (DOCS / made.PAGE).read_text(encoding="utf-8")
    text = made.reference()

    def look(command: click.Command, path: str) -> None:
        assert re.search(rf"^##+ {path}$", text, re.MULTILINE), path
        section = re.split(r"^##+ ", text.split(f"# {path}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden:
                assert max(one.opts, key=len) in section, f"{path}: {one.opts}"
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                look(inner, f"{path} {name}")

    for name, verb in cli.commands.items():
        look(verb, f"recfleet {name}")


def test_links_out_of_the_documentation_lead_to_pages_of_the_site() -> None:
    made = hook("repository")

    def rewritten(page: str, text: str) -> str:
        files = SimpleNamespace(get_file_from_path=lambda path: path)
        return str(
            made.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=page)), None, files)
        )

    same = (
        "[a](fcf.md) [b](../guide.md#the-report) [c](https://example.org/x) [d](#here) ![e](../images/x.png)"
    )
    assert rewritten("methods/fcf.md", same) == same
    assert rewritten("threat-model.md", "[a](../tests/a.py)") == "[a](repository/tests/a.py.md)"
    assert rewritten("methods/fcf.md", "[a](../../CHANGELOG.md#x)") == "[a](../repository/CHANGELOG.md#x)"
    assert rewritten("repository/CHANGELOG.md", "[a](docs/api.md)") == "[a](../api.md)"
    assert (
        rewritten("repository/CONTRIBUTING.md", "[a](docs/site/mkdocs.yml)") == "[a](docs/site/mkdocs.yml.md)"
    )


def test_the_gallery_has_its_reports_by_name() -> None:
    made = hook("reports")
    assert made.address_of("runs/storm/report.html") == "reports/storm.html"
    assert made.address_of("dropouts.html") == "reports/dropouts.html"
    page = SimpleNamespace(file=SimpleNamespace(src_uri=made.PAGE))
    shown = made.on_page_markdown("before\n\n<!-- report: fit.html -->\n", page, None, None)
    assert shown.count("reports/fit.html") == 2
    assert "<!--" not in shown


def test_gallery_commands_are_run_once_and_their_reports_found() -> None:
    made = hook("reports")
    folder = made._made_by(("echo made > one.html\nfalse || exit 3\n",))
    assert (folder / "one.html").read_text(encoding="utf-8") == "made\n"
    assert made._made_by(("echo made > one.html\nfalse || exit 3\n",)) == folder
    with pytest.raises(PluginError, match="exit 2"):
        made._made_by(("exit 2\n",))


@pytest.mark.parametrize(
    ("html", "finding"),
    [
        (
            '<script src="https://example.org/a.js"></script>',
            "page.html: <script> loads https://example.org/a.js",
        ),
        ('<img alt="x" src=//example.org/a.png>', "page.html: <img> loads //example.org/a.png"),
        ('<a class="b" href="gone.html#there">', "page.html: gone.html#there leads nowhere"),
        ('<a href="https://example.org">', None),
        ('<a href="page.html">', None),
        ('<a href="#here">', None),
    ],
)
def test_the_look_through_the_site_finds(html: str, finding: str | None, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<html>{html}</html>", encoding="utf-8")
    assert list(hook("self_contained").findings(tmp_path)) == ([] if finding is None else [finding])
