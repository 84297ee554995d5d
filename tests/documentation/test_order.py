"""Every page is in the navigation of the site, and in the index at the same place."""

from __future__ import annotations

from pages import DOCS, INDEX, PAGES, ROOT, index, navigation


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for _, pages in navigation() for page in pages if not page.startswith("repository/")]
    assert sorted(listed) == PAGES, "a new page goes into docs/site/mkdocs.yml and docs/README.md"


def test_the_index_has_the_sections_the_order_and_the_names_of_the_navigation() -> None:
    sections = {title: list(pages.items()) for title, pages in navigation() if INDEX not in pages}
    of_repository = [page.replace("repository/", "../") for page, _ in sections.pop("Project")]
    assert {title: list(pages.items()) for title, pages in index()} == sections
    text = (DOCS / INDEX).read_text(encoding="utf-8")
    assert [page for page in of_repository if f"({page})" not in text] == []


def test_pages_of_the_repository_exist() -> None:
    pages = [page for _, pages in navigation() for page in pages if page.startswith("repository/")]
    assert [page for page in pages if not (ROOT / page.removeprefix("repository/")).is_file()] == []
