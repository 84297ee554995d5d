"""Loading a scenario: file, parents, command line, validation; every error at once, each with its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import Final

from pydantic import ValidationError

from coordinator.scenario.dump import dump_resolved, scenario_hash
from coordinator.scenario.errors import FieldProblem, ScenarioError
from coordinator.scenario.extends import Chain, chain_of, read_chain, with_parents
from coordinator.scenario.formats import FORMAT, OldDefault, filled
from coordinator.scenario.merge import COMMAND_LINE, plain, with_override
from coordinator.scenario.references import check_references, profile_layers
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.translate import problems_of
from device_profiles.catalogue_reading import Parsed
from device_profiles.documents import Document, parse_document
from device_profiles.errors import CatalogueError, DocumentError, Path

__all__ = [
    "LoadedScenario",
    "ScenarioError",
    "dump_resolved",
    "edited",
    "load",
    "load_mapping",
    "load_text",
    "scenario_hash",
]

MAPPING: Final = "<mapping>"
"""The file name in positions of values that a program gives."""


@dataclass(frozen=True)
class LoadedScenario:
    """A valid scenario and where it came from.

    Attributes
    ----------
    scenario : the scenario.
    name : the file's name without its ending.
    chain : the files it was read from, and what was written in them, merged.
    stand_ins : files that are read in place of those that the texts at some paths name.
    """

    scenario: ScenarioSettings
    name: str
    chain: Chain
    stand_ins: Mapping[Path, FilePath] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, FilePath]:
        """The files it was read from by their name in positions, the scenario's own first."""
        return self.chain.files

    @property
    def document(self) -> Document:
        """What was written, merged, with the place of every value."""
        return self.chain.document

    @property
    def old_defaults(self) -> dict[str, tuple[OldDefault, ...]]:
        """By file, the old defaults of it that shape the scenario; every file of an old format is there."""
        taken = [gap for gap in self.chain.gaps if gap.is_open(self.document.root)]
        taken = [gap for gap in taken if gap.default.matters(self.scenario)]
        relying = {gap.file for gap in taken}
        return {
            file: tuple(gap.default for gap in taken if gap.file == file)
            for file in self.files
            if file in relying or self.chain.formats.get(file, FORMAT) < FORMAT
        }

    def resolve(self, path: Path) -> FilePath:
        """Return the file that the text at ``path`` names.

        A relative name starts at the folder of the scenario file that holds it, and at the current folder
        when it came from the command line.

        Raises
        ------
        LookupError : there is no text at ``path``.
        """
        return _resolve(self.document, self.files, path, self.stand_ins)

    def folder(self, path: Path) -> FilePath:
        """Return the folder in which the names of files inside the mapping at ``path`` start."""
        return _folder(self.document, self.files, path)

    def part(self, path: Path) -> Parsed:
        """Return the profiles that are written at ``path``."""
        return _part(self.document, self.files, path)

    @property
    def profile_layers(self) -> list[FilePath | Parsed]:
        """The further profiles of the fleet, in order, as the catalogue takes them."""
        return profile_layers(self.scenario.fleet, self.resolve, self.part)

    @cached_property
    def resolved(self) -> str:
        """The YAML of the scenario, flattened, with defaults and units."""
        return dump_resolved(self.scenario)

    @cached_property
    def hash(self) -> str:
        """64 hexadecimal digits; see :func:`coordinator.scenario.dump.scenario_hash`."""
        return scenario_hash(self.scenario)


def load(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    references: bool = True,
    data_here: bool = True,
) -> LoadedScenario:
    """Load a scenario and check all of it.

    Parameters
    ----------
    path : the file.
    overrides : settings from the command line, ``rounds.cohort=50``, applied in order.
    references : check that the profiles and files it names exist, too.
    data_here : check that for files of ratings as well.

    Raises
    ------
    ScenarioError : with every error found.
    """
    problems: list[DocumentError] = []
    try:
        chain = read_chain(FilePath(path), problems)
    except DocumentError as error:
        raise ScenarioError(_in_order([*problems, error], {})) from None
    chain = _overridden(chain, overrides, problems)
    position = chain.document.position(("format",))
    if position.file == COMMAND_LINE:
        problems.append(DocumentError(position, ("format",), "a file has one format; write it in the file"))
    return checked(chain, FilePath(path).stem, problems, references=references, data_here=data_here)


def load_mapping(
    mapping: Mapping[str, object], name: str = MAPPING, overrides: Sequence[str] = ()
) -> LoadedScenario:
    """Load a scenario from Python's mappings, lists and scalars, and check all of it.

    Parameters
    ----------
    mapping : what a file would hold, ``extends`` included. Names of files start at the current folder.
    name : how to call it.
    overrides : as for :func:`load`.

    Raises
    ------
    ScenarioError : with every error found; its places are lines of the mapping written as JSON, and paths.
    TypeError : a key or a value that no YAML file could hold.
    """
    problems: list[DocumentError] = []
    text = json.dumps(plain(mapping), indent=1, ensure_ascii=False)
    try:
        document = parse_document(text, MAPPING, problems=problems)
        chain = chain_of(*with_parents(document, FilePath(MAPPING), problems))
    except DocumentError as error:
        raise ScenarioError(_in_order([*problems, error], {})) from None
    return checked(_overridden(chain, overrides, problems), name, problems, references=True)


def _overridden(chain: Chain, overrides: Sequence[str], problems: list[DocumentError]) -> Chain:
    for number, text in enumerate(overrides, start=1):
        try:
            chain = chain._replace(document=with_override(chain.document, number, text))
        except DocumentError as error:
            problems.append(error)
    return chain


def edited(loaded: LoadedScenario, overrides: Sequence[str]) -> LoadedScenario:
    """Return a scenario with settings laid over it, checked anew.

    Raises
    ------
    ScenarioError : with every error found.
    """
    problems: list[DocumentError] = []
    chain = _overridden(loaded.chain, overrides, problems)
    return checked(chain, loaded.name, problems, references=True, stand_ins=loaded.stand_ins)


def load_text(
    text: str,
    name: str,
    stand_ins: Mapping[Path, FilePath] | None = None,
    overrides: Sequence[str] = (),
) -> LoadedScenario:
    """Load a scenario from its text, which extends no other, and check all of it.

    Parameters
    ----------
    text : YAML.
    name : how to call it; files that it names are looked for in the current folder.
    stand_ins : files to be read in place of those that the texts at some paths name.
    overrides : as for :func:`load`.

    Raises
    ------
    ScenarioError : with every error found.
    """
    problems: list[DocumentError] = []
    try:
        document = parse_document(text, name, problems=problems)
    except DocumentError as error:
        raise ScenarioError(_in_order([*problems, error], {})) from None
    chain = _overridden(chain_of([document], {}), overrides, problems)
    return checked(chain, name, problems, references=True, stand_ins=stand_ins)


def checked(
    chain: Chain,
    name: str,
    problems: list[DocumentError],
    *,
    references: bool,
    data_here: bool = True,
    stand_ins: Mapping[Path, FilePath] | None = None,
) -> LoadedScenario:
    """Return the scenario that a chain of files holds.

    Parameters
    ----------
    chain, name, stand_ins : as :class:`LoadedScenario` has them.
    problems : what has been found wrong so far.
    references, data_here : as for :func:`load`.

    Raises
    ------
    ScenarioError : with every error, those in ``problems`` among them.
    """
    stand_ins = {} if stand_ins is None else stand_ins
    document = chain.document
    try:
        scenario = ScenarioSettings.model_validate(filled(document.root, chain.gaps)).plain()
    except ValidationError as error:
        problems += _placed(problems_of(error, ScenarioSettings), document)
        raise ScenarioError(_in_order(problems, chain.files)) from None
    if references:
        problems += _reference_problems(scenario, chain, stand_ins, data_here=data_here)
    if problems:
        raise ScenarioError(_in_order(problems, chain.files))
    return LoadedScenario(scenario, name, chain, stand_ins)


def _reference_problems(
    scenario: ScenarioSettings, chain: Chain, stand_ins: Mapping[Path, FilePath], *, data_here: bool
) -> list[DocumentError]:
    document, files = chain.document, chain.files
    found: list[FieldProblem] = []
    in_profiles: Sequence[DocumentError] = ()
    try:
        for problem in check_references(
            scenario,
            lambda place: _resolve(document, files, place, stand_ins),
            lambda place: _part(document, files, place),
            data_here=data_here,
        ):
            found.append(problem)
    except CatalogueError as error:
        in_profiles = error.problems
    return [*_placed(found, document), *in_profiles]


def _placed(problems: Iterable[FieldProblem], document: Document) -> list[DocumentError]:
    return [
        DocumentError(
            document.position(problem.path, of_key=problem.of_key),
            problem.path,
            problem.message,
            problem.suggestion,
        )
        for problem in problems
    ]


def _in_order(problems: Sequence[DocumentError], files: dict[str, FilePath]) -> list[DocumentError]:
    """Return errors in reading order: the scenario, its parents, other files; each from top to bottom."""
    order = {name: index for index, name in enumerate(files)}

    def place(problem: DocumentError) -> tuple[int, str, int, int]:
        where = problem.position
        return order.get(where.file, len(order)), where.file, where.line, where.column

    return sorted(problems, key=place)


def _resolve(
    document: Document, files: dict[str, FilePath], path: Path, stand_ins: Mapping[Path, FilePath]
) -> FilePath:
    if path in stand_ins:
        return stand_ins[path]
    node: object = document.root
    for part in path:
        if isinstance(node, dict) and isinstance(part, str):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            node = None
    if not isinstance(node, str):
        raise LookupError(f"the scenario has no text at {path!r}")
    return FilePath(os.path.normpath(_folder(document, files, path) / node))


def _part(document: Document, files: dict[str, FilePath], path: Path) -> Parsed:
    return Parsed(document.part(path), lambda inner: _folder(document, files, (*path, *inner)))


def _folder(document: Document, files: dict[str, FilePath], path: Path) -> FilePath:
    origin = files.get(document.position(path).file)
    return origin.parent if origin is not None else FilePath()
