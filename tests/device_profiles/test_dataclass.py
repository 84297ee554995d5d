"""`device_profiles.dataclass` beside `dataclasses.dataclass`: the same classes, by both."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from device_profiles.dataclass import dataclass as ours

Decorator = Callable[..., Callable[[type], type]]

BOTH: list[Decorator] = [ours, dataclasses.dataclass]
MUTABLE: dict[str, bool] = {}
FROZEN = {"frozen": True}
SLOTS = {"slots": True}
FROZEN_SLOTS = {"frozen": True, "slots": True}
ALL = [MUTABLE, FROZEN, SLOTS, FROZEN_SLOTS, {**FROZEN_SLOTS, "eq": False}, {**FROZEN_SLOTS, "kw_only": True}]


def made(decorator: Decorator, arguments: dict[str, bool]) -> type[Any]:
    """Return a class with every sort of field, by a decorator."""

    class Rated:
        """What a device has."""

        kind: ClassVar[str] = "rated"
        item: int
        stars: float = 3.0
        marks: list[int] = field(default_factory=list)
        seen: float = field(default=0.0, compare=False)
        secret: str = field(default="", repr=False)
        double: float = field(init=False, default=0.0)
        own: list[int] = field(init=False, default_factory=list)
        note: str = field(default="none", kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.stars)

    return decorator(**arguments)(Rated)


def outcome(work: Callable[[], object]) -> tuple[str, object]:
    """Return what some work gives, or the name of its error."""
    try:
        return "value", work()
    except (TypeError, AttributeError) as error:
        return type(error).__name__, None


@pytest.mark.parametrize("arguments", ALL, ids=str)
def test_instances_are_those_of_the_standard_library(arguments: dict[str, bool]) -> None:
    mine, standard = (made(decorator, arguments) for decorator in BOTH)
    named: list[dict[str, Any]] = [
        {"item": 1},
        {"item": 1, "stars": 4.5, "marks": [1, 2], "note": "new"},
        {"item": 1, "seen": 9.0},
        {"item": 1, "secret": "x"},
        {},
        {"item": 1, "double": 2.0},
        {"item": 1, "other": 2},
    ]
    for values in named:
        shown = [outcome(lambda of=of, v=values: repr(of(**v))) for of in (mine, standard)]
        assert shown[0] == shown[1]
    assert outcome(lambda: repr(mine(1, 2.0))) == outcome(lambda: repr(standard(1, 2.0)))
    assert outcome(lambda: mine(1, 2.0, [], 0.0, "", "note")) == outcome(
        lambda: standard(1, 2.0, [], 0.0, "", "note")
    )
    for one in named[:4]:
        for other in named[:4]:
            same = [of(**one) == of(**other) for of in (mine, standard)]
            assert same[0] == same[1]
    assert mine(item=1) != standard(item=1)
    assert mine(item=1).own is not mine(item=1).own
    assert [one.name for one in fields(mine)] == [one.name for one in fields(standard)]
    assert mine.__match_args__ == standard.__match_args__
    assert hasattr(mine(item=1), "__dict__") == hasattr(standard(item=1), "__dict__")


@pytest.mark.parametrize("arguments", ALL, ids=str)
def test_what_can_be_hashed_has_the_hash_of_the_standard_library(arguments: dict[str, bool]) -> None:
    def pair(decorator: Decorator) -> type[Any]:
        class Pair:
            """Two numbers, one of them compared."""

            one: int
            other: int = field(default=2, compare=False)

        return decorator(**arguments)(Pair)

    mine, standard = (outcome(lambda of=of: hash(of(one=7))) for of in map(pair, BOTH))
    if arguments.get("eq", True):
        assert mine == standard
    assert mine[0] == standard[0]


@pytest.mark.parametrize("arguments", [FROZEN, FROZEN_SLOTS], ids=str)
def test_frozen_instances_can_be_copied_but_not_changed(arguments: dict[str, bool]) -> None:
    one = made(ours, arguments)(1, marks=[3])
    for change in (
        lambda: setattr(one, "item", 2),
        lambda: delattr(one, "item"),
        lambda: setattr(one, "x", 1),
    ):
        with pytest.raises(FrozenInstanceError, match=r"field '(item|x)'"):
            change()
    assert copy.copy(one) == copy.deepcopy(one) == one
    assert copy.deepcopy(one).marks is not one.marks
    assert replace(one, item=5).item == 5
    assert asdict(one)["marks"] == [3]


@ours(frozen=True, slots=True)
class Sent:
    """What goes to another process."""

    name: str
    sizes: tuple[int, ...] = ()


def test_frozen_instances_with_slots_go_through_pickle() -> None:
    sent = Sent("a", (1, 2))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(sent, protocol)) == sent


def test_methods_that_a_class_defines_are_kept() -> None:
    @ours(frozen=True)
    class Named:  # noqa: PLW1641 - both decorators add a hash
        """A name, whatever its case."""

        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and other.name.lower() == self.name.lower()

    assert repr(Named("a")) == "<a>"
    assert Named("a") == Named("A")
    assert hash(Named("a")) == hash(("a",))


@pytest.mark.parametrize("base_by", BOTH)
@pytest.mark.parametrize("derived_by", BOTH)
def test_either_can_be_derived_from_the_other(base_by: Decorator, derived_by: Decorator) -> None:
    @base_by(frozen=True, slots=True)
    class Base:
        """The base."""

        one: int

    @derived_by(frozen=True, slots=True)
    class Derived(Base):
        """What is derived from it."""

        two: int = 2

    both = Derived(1)
    assert (both.one, both.two) == (1, 2)
    assert repr(both).endswith("Derived(one=1, two=2)")
    assert copy.copy(both) == both
    with pytest.raises(FrozenInstanceError):
        both.one = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        both.two = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):

        @derived_by()
        class Changeable(Base):
            """Nothing: it cannot be."""


def test_a_class_derived_without_a_decorator_has_attributes_of_its_own() -> None:
    class Marked(Sent):
        """With a mark, which is no field."""

    marked = Marked("a")
    marked.mark = 1  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        marked.name = "b"  # type: ignore[misc]


def test_an_instance_that_holds_itself_is_shown_once() -> None:
    @ours(slots=True)
    class Node:
        """A place in a list."""

        next: Any = None

    node = Node()
    node.next = node
    assert repr(node).endswith("Node(next=...)")


def test_no_class_of_the_packages_is_made_by_the_slow_one() -> None:
    root = Path(__file__).resolve().parents[2]
    slow = re.compile(r"^from dataclasses import .*\bdataclass\b|@dataclasses\.dataclass", re.MULTILINE)
    files = [
        file
        for package in ("device_profiles", "edge", "coordinator")
        for file in (root / package).rglob("*.py")
    ]
    assert [file.name for file in files if slow.search(file.read_text(encoding="utf-8"))] == []
