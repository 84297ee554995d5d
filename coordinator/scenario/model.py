"""The base of all sections of a scenario, and what may stand at each place of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    PydanticKnownError,
    core_schema,
)

from coordinator.scenario.errors import FieldProblem, FieldProblemsError, did_you_mean
from device_profiles.fields import TEXT_TAG, ByKey, Choice, Form, OnDemand, whole_schema
from device_profiles.quantities import quoted
from edge.core.plugins import ADVICE
from edge.core.rng import Draws
from edge.privacy.clipping import SMALLEST_BOUND

_KNOWN_ERRORS: Final = frozenset(get_args(core_schema.ErrorType))
_TRIES: Final = 20


class Section(BaseModel):
    """A mapping of a scenario: immutable, and any key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = tuple(self._problems())
        if found:
            raise FieldProblemsError(found)
        return self

    def _problems(self) -> Iterator[FieldProblem]:
        """Yield what the values of the section, each valid by itself, contradict; nothing by default."""
        yield from ()


def clip_problems(key: str, bound: float) -> Iterator[FieldProblem]:
    """Yield why ``bound``, the positive value of ``key``, is no bound for the values of an update."""
    if bound < SMALLEST_BOUND:
        message = f"{bound:g} is too small: clipped to it, values would vanish in float32"
        yield FieldProblem((key,), message, f"write {SMALLEST_BOUND:g} or more")


@dataclass(frozen=True, slots=True, eq=False)
class Registered(Choice):
    """A section of those in the registry, looked up when a value is read; annotates its base class.

    Attributes
    ----------
    kind : of :mod:`edge.core.plugins`; ``sections`` is a view of it.
    """

    kind: str = ""

    def __get_pydantic_core_schema__(self, source: type[BaseModel], handler: object) -> CoreSchema:
        def read(value: object) -> BaseModel:
            return value if isinstance(value, source) else self._read(value)

        return core_schema.no_info_plain_validator_function(read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        every = {name: whole_schema(section) for name, section in self.sections.items()}
        chosen = handler(core_schema.tagged_union_schema(every, discriminator=self.key))
        return chosen if self.text is None else {"anyOf": [{"enum": list(every)}, chosen]}

    def _read(self, value: object) -> BaseModel:
        if isinstance(value, str) and self.text is not None:
            word = value.strip()
            if word not in self.sections:
                message = f"{quoted(value)} is none of: {', '.join(self.sections)}"
                raise FieldProblemsError((FieldProblem((), message, self.hint(word)),))
            value = {self.key: word}
        tag = value.get(self.key) if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in self.sections:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": self.key})
        section = self.sections[tag]
        try:
            return section.model_validate(value)
        except ValidationError as error:
            details = [_within(tag, detail) for detail in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(section.__name__, details) from None

    def hint(self, name: str) -> str:
        """Return what to do about a name that is not registered."""
        close = did_you_mean(name, self.sections)
        return ADVICE if close is None else f"{close} or {ADVICE}"


def _within(tag: str, detail: ErrorDetails) -> InitErrorDetails:
    """Return an error of an alternative as one of the choice, whose location names the alternative."""
    kind: str | PydanticCustomError = detail["type"]
    if kind not in _KNOWN_ERRORS:
        kind = PydanticCustomError("value_error", detail["msg"])
    return InitErrorDetails(
        type=kind, loc=(tag, *detail["loc"]), input=detail["input"], ctx=detail.get("ctx", {})
    )


@dataclass(frozen=True, slots=True, eq=False)
class MadeWhenAsked:
    """A section whose keys depend on what is registered when a value is read; annotates its base class.

    Attributes
    ----------
    make : returns the section.
    """

    make: Callable[[], type[BaseModel]]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: self.make().model_validate(value))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(whole_schema(self.make()))


def text_or_section(text: Any, meaning: str, key: str, sections: Mapping[str, type[BaseModel]]) -> Any:
    """Return the annotation of a value that is either text or a section chosen by ``key``.

    Parameters
    ----------
    text : type of the text.
    meaning : what the text stands for, such as ``name of a profile``.
    key : the key that decides which section a mapping is.
    sections : its values, each with the section it selects.
    """
    members = [Annotated[section, OnDemand(), Tag(value)] for value, section in sections.items()]
    marker = Choice(key, dict(sections), meaning)
    return Annotated[
        Union[(Annotated[text, Tag(TEXT_TAG)], *members)],
        Discriminator(_tag_by(key)),
        marker,
    ]


def _tag_by(key: str) -> Callable[[object], str]:
    def tag(value: object) -> str:
        if isinstance(value, BaseModel):
            return str(getattr(value, key))
        if isinstance(value, dict):
            return str(value.get(key, ""))
        return TEXT_TAG

    return tag


@dataclass(frozen=True, slots=True)
class Shape:
    """What may stand at a place.

    Attributes
    ----------
    type : the type, without ``None`` and ``Annotated``.
    extras : what annotated it.
    choice : set where the keys depend on the value of one of them.
    """

    type: Any
    extras: tuple[object, ...] = ()
    choice: Choice | None = None

    def extra(self, kind: type[Any]) -> Any | None:
        """Return what annotated the type and is of a kind, or None."""
        return next((extra for extra in self.extras if isinstance(extra, kind)), None)

    @property
    def section(self) -> type[BaseModel] | None:
        """The section that stands here, where there is exactly one."""
        made = self.extra(MadeWhenAsked)
        if made is not None:
            section: type[BaseModel] = made.make()
            return section
        is_one = isinstance(self.type, type) and issubclass(self.type, BaseModel) and self.choice is None
        return self.type if is_one else None


def shape_of(annotation: Any, extras: tuple[object, ...] = ()) -> Shape:
    """Return the shape behind an annotation: ``Annotated[X, a] | None`` is X with the extra a."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return shape_of(inner, (*extras, *more))
    if origin not in (Union, UnionType):
        return Shape(annotation, extras, next((one for one in extras if isinstance(one, Registered)), None))
    members = [member for member in get_args(annotation) if member is not NoneType]
    if len(members) == 1:
        return shape_of(members[0], extras)
    return Shape(annotation, extras, _choice_of(members, extras))


def _choice_of(members: list[Any], extras: tuple[object, ...]) -> Choice | None:
    for extra in extras:
        if isinstance(extra, Choice):
            return extra
        if isinstance(extra, ByKey):
            return Choice(extra.key, extra.sections(members))
    return None


def field_shape(section: type[BaseModel], name: str) -> Shape:
    """Return the shape of a field of a section."""
    info = section.model_fields[name]
    return shape_of(info.annotation, (*info.metadata, info))


def field_order(section: type[BaseModel], shape: Shape) -> list[str]:
    """Return the fields of a section in the order to show them.

    What decides about the others comes first, then its own, then those that it shares with other sections.
    """
    first = shape.choice.key if shape.choice is not None else None
    own = inspect.get_annotations(section)
    return sorted(section.model_fields, key=lambda name: (name != first, name not in own))


def item_shape(shape: Shape) -> Shape:
    """Return the shape of the items of a list, or of the values of a mapping with free keys."""
    arguments = get_args(shape.type)
    if not arguments:
        return Shape(object)
    return shape_of(arguments[1] if get_origin(shape.type) is dict else arguments[0])


def words_of(shape: Shape) -> tuple[str, ...]:
    """Return the words that may stand at a place, where there is a fixed set of them."""
    if get_origin(shape.type) is not Literal:
        return ()
    return tuple(str(word) for word in get_args(shape.type))


def random_settings(section: type[BaseModel], draws: Draws) -> dict[str, Any]:
    """Return random settings of a section, as a scenario writes them; half of the optional ones are left out.

    Fields that are lists, mappings or sections keep their defaults.

    Raises
    ------
    ValueError : a required field has a type that has no random values, or no try was valid.
    """
    for _ in range(_TRIES):
        made = {}
        for name, info in section.model_fields.items():
            if info.is_required() or draws.chance(0.5):
                value = _random(field_shape(section, name), draws)
                if value is not None:
                    made[name] = value
                elif info.is_required():
                    raise ValueError(f"{section.__name__}.{name} has a type without random values")
        try:
            section.model_validate(made)
        except ValidationError as error:
            refused = error
        else:
            return made
    raise ValueError(f"{section.__name__}: no random settings were valid: {refused}")


def _random(shape: Shape, draws: Draws) -> str | None:
    """Return a random value as it is written; None for a type that has none."""
    words = words_of(shape)
    if words:
        return draws.one(words)
    form = shape.extra(Form)
    kinds = {shape.type, *get_args(shape.type)}
    if bool in kinds:
        return draws.one(("true", "false"))
    if form is None or not kinds & {int, float}:
        return None
    written: str = form.write(draws.between(0.05, 1.0) if float in kinds else draws.whole(1, 4))
    return written
