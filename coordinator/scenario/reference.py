"""The reference of scenario files, made from the schema: ``recfleet schema --page scenarios``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, get_origin

from pydantic import BaseModel

from coordinator.scenario.dump import written_default
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.extends import MAX_CHAIN
from coordinator.scenario.metric_names import METRICS, SPLITS, USER_GROUPS, find_metric, ranking_examples
from coordinator.scenario.model import Shape, field_order, field_shape, item_shape, words_of
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.sweep_section import MAX_RUNS
from coordinator.scenario.thresholds import EVENT_AGGREGATIONS, OPERATORS, VALUE_AGGREGATIONS
from device_profiles.documents import MAX_DEPTH, MAX_FILE_BYTES, MAX_LINE_CHARACTERS, MAX_NODES
from device_profiles.fields import Choice, Form
from edge.core.vocabulary import Way, labels

_EXIT_CODES: Final = {
    ExitCode.HELD: "it worked, and every threshold held",
    ExitCode.INTERNAL_ERROR: "internal error, or trouble of the system: a full disk, a missing permission",
    ExitCode.INVALID_SCENARIO: "the scenario, or something it refers to, is wrong; nothing was run",
    ExitCode.THRESHOLD_MISSED: "a threshold was missed, or nothing was learnt, in the run or in its baseline",
    ExitCode.INTERRUPTED: "stopped before it finished",
    ExitCode.OUTPUT_CLOSED: "whoever read the output closed it, as `head` does",
}


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


_INTRODUCTION: Final = f"""\
# Scenario files

A scenario is one YAML file. This page is made from the schema (`recfleet schema --page scenarios`);
`recfleet schema` prints the same as JSON Schema for editors, and `recfleet show FILE` prints a scenario with
all its defaults.

## How values are written

- Everything is read as text and gets its meaning from its key: `no`, `1e-3`, `010` and `1:30` are never
  turned into something else on the way.
- A quantity has a unit: `300 ms`, `20 min`, `50 Mbit/s`, `64 KiB`. Bits and bytes are different units
  (`Mbit/s`, `MB/s`), and so are `kB` (1000 bytes) and `KiB` (1024 bytes). A bare number is an error.
- A fraction is a percentage or a number from 0 to 1: `30%` or `0.3`.
- `true` and `false` are the only truth values.
- An unknown or duplicate key is an error. So are tags, anchors, aliases and a second document. A file is
  UTF-8, at most {MAX_FILE_BYTES // 1024} KiB, with at most {MAX_NODES} values, nested at most {MAX_DEPTH}
  deep, no line longer than {MAX_LINE_CHARACTERS} characters.
- Every error is shown at once, as `file:line:column: path: message`.

## Building on another file

`extends: base.yaml` starts from another scenario (relative to this file; a chain of at most {MAX_CHAIN}
files). Mappings merge, lists replace, and `null` removes what was inherited. On the command line,
`--set path=value` changes one value after that: `--set rounds.cohort=50`, `--set phases[0].rounds=3`,
`--set 'thresholds."round.completed"=[rate >= 90%]'`. Text that starts with `[`, `{{` or a quotation mark is
YAML, anything else is taken as it stands, and `null` removes.

Names of files are relative to the file that holds them, and to the current folder on the command line.
"""

_THRESHOLDS = f"""\
## Thresholds

    thresholds:
      round.completed: [rate == 100%]
      round.duration: [p95 < 20 s, max < 1 min]
      "device.up_bytes{{network=4g_slow}}": [p99 < 256 KiB]
      model.rmse: [last < 0.9 * first]

A threshold is a metric, narrowed by tags in braces, and a list of expectations `aggregation operator limit`;
each has to hold. Operators: {_words(OPERATORS)}.

- Of an event (happened or not), {" and ".join(f"`{name}`" for name in EVENT_AGGREGATIONS)} can be asked: the
  share of observations in which it happened, and how often it happened.
- Of any other metric, {_words(VALUE_AGGREGATIONS)},
  where `p` takes any percentage (`p99.9`) and `med` is `p50`. `first` and `last` are in time order;
  `count` is the number of observations.
- A percentile interpolates linearly between the two closest ranks: with n sorted values, `pN` is the value at
  rank (n − 1)·N/100, counted from 0 (definition 7 of Hyndman and Fan, 1996).
- A limit has the metric's unit, or is a multiple of another aggregate of the same metric and tags: `0.9 *
  first`, `150% * med`. With `baseline` in the scenario it can be a multiple of the same aggregate of the
  same metric and tags in the run without faults: `p95 <= 1.10 * baseline`, `last >= baseline`.
- Without any observation, a threshold does not hold, unless it asks for a `count`. A value that is not a
  number (NaN) does not hold either.
- `{{expect: p99 < 90 s, abort: true, after: 2 rounds}}` is the long form of an expectation. With `abort:
  true` it is checked after every round, on the rounds so far, once `after` (rounds, or simulated time such
  as `10 min`; from the first round if left out) has passed; if it is missed the run ends there, with
  everything written so far and the exit code of a missed threshold. A round is looked at once the last of
  its devices is done, which can be during the next round. What has not been observed yet ends nothing.

Besides, every run promises that it learns: a round completes, the model stays finite, and no metric ends more
than ten times worse than before the first round. Where that is broken it is among the verdicts, as missed.
With `expect: diverged` or `expect: no-round-completed` it has to be broken, and in that way.

The tags are `phase` (a name under `phases`), `class` (name of the device profile), `network` (name of the
network profile), `region` (`region-0` and so on, with regional outages), `users`
({_words(USER_GROUPS)}: whether a user's device may train), `split` ({_words(SPLITS)}: which of the kept-back
ratings are scored; the test, where both are) and `way` ({_words(labels(Way))}: how a device's update came).
"""

_BASELINE = """\
## Baseline

`baseline: same-seed-without-faults` runs the scenario without its `faults` first, with the same seed, into
`baseline/` inside the run directory. One that lies there already is used again if it is the same: scenario,
data and version. It has to hold the thresholds that do not compare with it and are not tagged with a phase
that a fault is aimed at (`during`); if it does not, the run ends there, with the exit code of a missed
threshold.
"""

_SWEEP = f"""\
## Sweep

    sweep:
      rounds.over_select: [100%, 130%]
      rounds.deadline: [30 s, 45 s, 90 s]
      cells:
        - {{learning.algorithm: fedrecon, learning.factors: 8}}
        - {{learning.algorithm: fedrecon, learning.factors: 32}}
      repeat: 5

- A key is the path of a setting, as `--set` takes it; its value is the list of values to try. Every
  combination is a cell; the last key varies fastest. A mapping merges with what the scenario has, a list
  replaces, `null` removes.
- `cells` lists settings that vary together, and combines with the other keys like one of them. Alone it is
  a plain list of cells.
- `repeat` runs each cell so often, with the seeds seed, seed + 1, … of the scenario (default 1). `seed`
  itself cannot be varied. A sweep has at most {MAX_RUNS} runs.
- `recfleet sweep` runs it, `recfleet run` leaves it alone and runs the scenario as it is written. `recfleet
  validate` and `recfleet show` check every cell; an error stands at the value that causes it, or names the
  cell.
"""


def render() -> str:
    """Return the whole page, Markdown."""
    parts = [_INTRODUCTION, "## The keys of a scenario\n", _table(Shape(ScenarioSettings), ScenarioSettings)]
    for name in ScenarioSettings.model_fields:
        parts += _chapters(name, field_shape(ScenarioSettings, name), 2)
    parts += [_THRESHOLDS, *_metrics(), _BASELINE, _SWEEP, _exit_codes()]
    return "\n".join(parts)


def _chapters(path: str, shape: Shape, level: int) -> Iterator[str]:
    """Yield the headings and tables of what stands at ``path`` and below it."""
    heading = "#" * min(level, 5)
    if get_origin(shape.type) in (tuple, list):
        shape = item_shape(shape)
        path += "[]"
    if shape.choice is not None:
        yield from _alternatives(path, shape, shape.choice, level)
    elif shape.section is not None:
        yield f"{heading} `{path}`\n"
        yield f"{_summary(shape.section)}\n"
        yield _table(shape, shape.section)
        for name in field_order(shape.section, shape):
            yield from _chapters(f"{path}.{name}", field_shape(shape.section, name), level + 1)


def _alternatives(path: str, shape: Shape, choice: Choice, level: int) -> Iterator[str]:
    yield f"{'#' * min(level, 5)} `{path}`\n"
    if choice.text is not None:
        yield f"Plain text is the {choice.text}; a mapping is one of the following.\n"
    shown: dict[str, str] = {}
    for value, section in choice.sections.items():
        yield f"{'#' * min(level + 1, 5)} `{path}`, `{choice.key}: {value}`\n"
        yield f"{_summary(section)}\n"
        table = _table(shape, section, skip=choice.key)
        same = shown.setdefault(table, value)
        if same != value:
            yield f"Keys as for `{choice.key}: {same}`.\n"
        elif table:
            yield table
    # Sections inside an alternative are described once, under the first alternative that has them.
    inside: set[str] = set()
    for section in choice.sections.values():
        for name in section.model_fields:
            if name not in inside:
                inside.add(name)
                yield from _chapters(f"{path}.{name}", field_shape(section, name), level + 1)


def _summary(section: type[BaseModel]) -> str:
    return (
        (section.__doc__ or "").strip().split("\n\n", maxsplit=1)[0].replace("\n    ", " ").replace("``", "`")
    )


def _table(shape: Shape, section: type[BaseModel], skip: str | None = None) -> str:
    names = [name for name in field_order(section, shape) if name != skip]
    if not names:
        return ""
    rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for name in names:
        info = section.model_fields[name]
        description = (info.description or "").rstrip(".")
        default = "required" if info.is_required() else _default(section, name)
        cells = (f"`{name}`", _form(field_shape(section, name)), default, description)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _form(shape: Shape) -> str:
    """Return what may be written, in words."""
    form = shape.extra(Form)
    if form is not None:
        return str(form.describe)
    if shape.choice is not None:
        mapping = f"mapping by `{shape.choice.key}`"
        return f"{shape.choice.text}, or {mapping}" if shape.choice.text is not None else mapping
    words = words_of(shape)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    origin = get_origin(shape.type)
    if origin in (tuple, list):
        return f"list of {_form(item_shape(shape))}"
    if origin is dict:
        return f"mapping from name to {_form(item_shape(shape))}"
    return "mapping" if shape.section is not None else "value"


def _default(section: type[BaseModel], name: str) -> str:
    written: Any = written_default(section, name)
    if written is None:
        return ""
    if isinstance(written, dict):
        deciding = field_shape(section, name).choice
        if deciding is not None:
            return f"`{deciding.key}: {written[deciding.key]}`"
        return "see below" if written else "none"
    if isinstance(written, list):
        return f"`[{', '.join(str(item) for item in written)}]`"
    return f"`{written}`"


def _metrics() -> Iterator[str]:
    yield "### Metrics\n"
    rows = ["| metric | values | tags | one observation is |", "| --- | --- | --- | --- |"]
    for metric in METRICS.values():
        tags = ", ".join(f"`{tag}`" for tag in metric.tags)
        rows.append(f"| `{metric.name}` | {metric.kind.value} | {tags} | {metric.description} |")
    for name in ranking_examples():
        found = find_metric(name)
        assert found is not None, "an example is the name of a metric"
        tags = ", ".join(f"`{tag}`" for tag in found.tags)
        rows.append(f"| `{name}` | {found.kind.value} | {tags} | {found.description} |")
    yield "\n".join(rows) + "\n"
    yield (
        "The cut-off after `@` is one of `evaluation.ranking.k`; what is not usual has to be named in\n"
        "`evaluation.ranking.metrics`. Against sampled negatives the name says how many:\n"
        "`model.ndcg@10/99neg`, `model.auc/99neg`. The tags `activity` (`light`, `medium`, `heavy`) and\n"
        "`popularity` (`head`, `middle`, `tail`) need `evaluation.by`.\n"
    )


def _exit_codes() -> str:
    rows = ["## Exit codes\n", "| code | meaning |", "| --- | --- |"]
    rows += [f"| {code.value} | {_EXIT_CODES[code]} |" for code in ExitCode]
    return "\n".join(rows) + "\n"
