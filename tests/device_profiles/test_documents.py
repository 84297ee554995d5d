from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_profiles.documents import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_LINE_CHARACTERS,
    MAX_NODES,
    Document,
    parse_document,
    read_document,
)
from device_profiles.errors import DocumentError, format_path


def refusal(content: bytes | str) -> str:
    with pytest.raises(DocumentError) as caught:
        parse_document(content, "f.yaml")
    return str(caught.value)


def test_scalars_stay_as_written() -> None:
    text = (
        "a: no\nb: 1e-3\nc: 010\nd: 1:30\ne: 0x10\nf: 2024-01-01\n"
        "g: 1_000\nh: .inf\ni: true\nj: '~'\nk: \"null\"\n"
    )
    assert parse_document(text, "f").root == {
        "a": "no", "b": "1e-3", "c": "010", "d": "1:30", "e": "0x10", "f": "2024-01-01", "g": "1_000",
        "h": ".inf", "i": "true", "j": "~", "k": "null",
    }  # fmt: skip


def test_only_an_empty_value_null_and_tilde_are_none() -> None:
    assert parse_document("a:\nb: null\nc: ~\nd: Null\n", "f").root == {
        "a": None,
        "b": None,
        "c": None,
        "d": "Null",
    }


def test_every_key_and_value_has_its_place() -> None:
    document = parse_document("a: 1\nb:\n  - x\n  - {c: y, 'd': z}\n", "f")
    assert document.root == {"a": "1", "b": ["x", {"c": "y", "d": "z"}]}
    assert {format_path(path): str(place) for path, place in document.values.items()} == {
        "": "f:1:1", "a": "f:1:4", "b": "f:3:3", "b[0]": "f:3:5", "b[1]": "f:4:5", "b[1].c": "f:4:9",
        "b[1].d": "f:4:17",
    }  # fmt: skip
    assert {format_path(path): str(place) for path, place in document.keys.items()} == {
        "a": "f:1:1", "b": "f:2:1", "b[1].c": "f:4:6", "b[1].d": "f:4:12",
    }  # fmt: skip


def test_columns_count_characters_not_bytes() -> None:
    document = parse_document("é: {ü: 1, a: 2}\n", "f")
    assert str(document.position(("é", "a"))) == "f:1:14"


def test_what_is_missing_is_placed_at_what_it_is_missing_from() -> None:
    document = parse_document("a: 1\nb:\n  c: {d: 1}\n", "f")
    assert str(document.position(("b", "c", "x"))) == "f:3:3"
    assert str(document.position(("x", "y"))) == "f:1:1"


def test_blocks_and_comments() -> None:
    assert parse_document("# hi\na: |\n  x\n  y\nb: >\n  p\n  q\n...\n", "f").root == {
        "a": "x\ny\n",
        "b": "p q\n",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "f.yaml:1:1: the file is empty; write 'key: value' lines"),
        (b"# nothing\n", "f.yaml:1:1: the file is empty; write 'key: value' lines"),
        (b"--- \n", "f.yaml:2:1: the file is empty; write 'key: value' lines"),
        (b"- a\n", "f.yaml:1:1: the file holds a list where a mapping belongs; write 'key: value' lines"),
        (b"text\n", "f.yaml:1:1: the file holds a single value where a mapping belongs"),
        (b"a: 1\n---\nb: 1\n", "f.yaml:2:1: a second document starts here ('---'); a file holds one"),
        (b"%YAML 1.1\n---\na: 1\n", "f.yaml:2:1: directives ('%YAML', '%TAG') are not supported"),
        (b"a: 1\na: 2\n", "f.yaml:2:1: a: duplicate key; it was first given at line 1; keep one of the two"),
        (b"a: {b: 1, b: 2}\n", "f.yaml:1:11: a.b: duplicate key; it was first given at line 1"),
        (b"a: &x 1\n", "f.yaml:1:4: a: anchors ('&name') are not supported"),
        (b"a: *x\n", "f.yaml:1:4: a: aliases ('*name') are not supported"),
        (b"a: !!python/object/apply:os.system [ls]\n", "f.yaml:1:4: a: tags such as"),
        (b"a: !!str 1\n", "f.yaml:1:4: a: tags such as"),
        (b"a:\n\tb: 1\n", "f.yaml:2:1: a: a tab cannot indent or separate here; use spaces"),
        (b"a: b: c\n", "f.yaml:1:5: a ':' is not allowed here"),
        (b"a: [1, 2\n", "f.yaml:2:1: a[2]: not valid YAML: expected ',' or ']'"),
        (b"a: @b\n", "f.yaml:1:4: a: a value cannot start with '@'; put it in quotes"),
        (b"a: \"\\q\"\n", "f.yaml:1:6: a: not valid YAML: found unknown escape character 'q'"),
        (b"a: \"\\U99999999\"\n", "f.yaml:1:1: a: not valid YAML: an escape after this place"),
        (b"a: \"\\0\"\n", "f.yaml:1:4: a: the text contains the character U+0000; remove the escape"),
        (b"a: \"\\uD800\"\n", "f.yaml:1:4: a: the text contains the character U+D800; remove the escape"),
        (b"? [a]\n: 1\n", "f.yaml:1:3: a key must be plain text"),
        (b": 1\n", "f.yaml:1:1: an empty key; write 'key: value'"),
        (b"null: 1\n", "f.yaml:1:1: an empty key; write 'key: value'"),
        (b"\"a\\nb\": 1\n", "f.yaml:1:1: a key is one line; remove the line break"),
        (b"a: 1\nb: \xe9\n", "f.yaml:2:4: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b"\xef\xbb\xbfa: 1\n", "f.yaml:1:1: the file starts with a byte order mark"),
        ("a: 1\n".encode("utf-16"), "f.yaml:1:1: the file is in UTF-16 or UTF-32; save it as UTF-8"),
        ("a: 1\n".encode("utf-16-le"), "f.yaml:1:2: character U+0000 does not belong in a text file"),
        (b"a: 1\nb: \x07\n", "f.yaml:2:4: character U+0007 does not belong in a text file; remove it"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(content: bytes, expected: str) -> None:
    assert refusal(content).startswith(expected)


def test_a_version_unknown_to_the_parser_is_refused() -> None:
    assert "f.yaml:1:1: " in refusal(b"%YAML 1.7\n---\na: 1\n")


def test_depth_is_limited() -> None:
    deepest = "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert parse_document(deepest, "f").root["a"] is not None
    assert f"nested deeper than {MAX_DEPTH} levels" in refusal("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert f"nested deeper than {MAX_DEPTH} levels" in refusal("a: " + "{b: " * 4000)


def test_the_number_of_values_is_limited() -> None:
    assert f"more than {MAX_NODES} values" in refusal("a: [" + "1,\n " * MAX_NODES + "1]\n")


def test_the_length_of_a_line_is_limited() -> None:
    longest = "a: 1\nb: " + "x" * (MAX_LINE_CHARACTERS - 3)
    assert len(str(parse_document(longest, "f").root["b"])) == MAX_LINE_CHARACTERS - 3
    expected = f"f.yaml:2:1: a line of more than {MAX_LINE_CHARACTERS} characters, the limit of a document"
    assert refusal(longest + "x").startswith(expected)


def test_the_size_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: 1\n#" + b"x" * MAX_FILE_BYTES)
    with pytest.raises(DocumentError, match=r"larger than 1048576 bytes \(1 MiB\)"):
        read_document(path)
    path.write_bytes(b"a: 1\n" + b"#\n" * ((MAX_FILE_BYTES - 5) // 2) + b"#")
    assert path.stat().st_size == MAX_FILE_BYTES
    assert read_document(path).root == {"a": "1"}


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"gone\.yaml:1:1: there is no such file"):
        read_document(tmp_path / "gone.yaml")
    with pytest.raises(DocumentError, match="cannot be read: Is a directory"):
        read_document(tmp_path)
    with pytest.raises(DocumentError, match="cannot be read"):
        read_document(Path("a\0b"))


def test_duplicates_can_be_collected() -> None:
    problems: list[DocumentError] = []
    document = parse_document("a: 1\na: {b: [2]}\nc: 3\na: 4\n", "f", problems=problems)
    assert document.root == {"a": "1", "c": "3"}
    assert [str(problem.position) for problem in problems] == ["f:2:1", "f:4:1"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("faults", 1, "on", "profile"), "faults[1].on.profile"),
        (("thresholds", "round.completed{phase=a}", 0), 'thresholds."round.completed{phase=a}"[0]'),
        (("a b",), '"a b"'),
        (("a\tb", 'c"d'), '"a\\tb"."c\\"d"'),
        ((), ""),
    ],
)
def test_paths(path: tuple[str | int, ...], text: str) -> None:
    assert format_path(path) == text


YAML_PIECES = st.sampled_from(
    ["\n", "  ", "\t", ": ", "- ", "? ", "|", ">", "&a ", "*a", "!t ", "!!str ", "%YAML 1.1\n", "---\n",
     "...\n", '"', "'", "\\U", "\\x4", "\\uD800", "{", "}", "[", "]", ",", "#", "\r", "\x85", "\u2028", "\0",
     "<<: ", "@", "`", "~", "\ufeff", "a", "b c", "1", "key", "99999999"]
)  # fmt: skip


def outcome(content: bytes) -> Document | DocumentError:
    try:
        return parse_document(content, "f")
    except DocumentError as error:
        return error


@settings(max_examples=300)
@given(st.lists(YAML_PIECES, max_size=40).map("".join))
def test_yaml_like_text_parses_or_is_refused(text: str) -> None:
    result = outcome(text.encode("utf-8"))
    place = result.position if isinstance(result, DocumentError) else result.position(())
    assert place.line >= 1
    assert place.column >= 1


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_parse_or_are_refused(content: bytes) -> None:
    result = outcome(content)
    assert isinstance(result, Document) or str(result).startswith("f:")
