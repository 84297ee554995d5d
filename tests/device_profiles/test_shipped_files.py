"""The shipped files parsed ahead: equal to their YAML, with its places; read anew once one has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from device_profiles import shipped_files
from device_profiles.documents import read_document

FOLDER = Path(shipped_files.__file__).parent / "catalogue"


def test_what_was_parsed_ahead_is_what_the_files_hold() -> None:
    written = (FOLDER / shipped_files.PARSED).read_text(encoding="utf-8")
    assert written == shipped_files.parsed(FOLDER), "run: python -m device_profiles.shipped_files"


def test_no_shipped_file_is_parsed_until_a_place_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = shipped_files.parse_document

    def counted(content: bytes, name: str) -> object:
        parsed.append(name)
        return parse(content, name)

    monkeypatch.setattr(shipped_files, "parse_document", counted)
    documents, folder = shipped_files.shipped_documents.__wrapped__()
    assert parsed == []
    by_name = {Path(document.file).name: document for document in documents}
    devices = by_name["devices.yaml"]
    path = ("devices", "phone_mid_2020", "ram")
    whole = read_document(folder / "devices.yaml", name=devices.file)
    assert devices.position(path, of_key=True) == whole.position(path, of_key=True)
    assert devices.part(path[:2]).root == whole.part(path[:2]).root
    assert parsed == [devices.file]


def test_a_file_that_has_changed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "catalogue")
    changed = tmp_path / "catalogue" / "thermal.yaml"
    changed.write_text(changed.read_text(encoding="utf-8") + "# a word\nnew: {}\n", encoding="utf-8")
    monkeypatch.setattr(shipped_files, "files", lambda _: tmp_path)
    documents, _ = shipped_files.shipped_documents.__wrapped__()
    assert "new" in documents[shipped_files.SHIPPED.index("thermal.yaml")].root
