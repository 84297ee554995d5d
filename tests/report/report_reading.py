"""Reading a report as a browser would, with the parser of the standard library."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.results.tables.reader import open_run

VOID = frozenset({"meta", "link", "br", "img", "input", "hr", "wbr"})


class Page(HTMLParser):
    """Reads a page and refuses tags that do not match.

    ``figures`` holds ``data-value`` by ``data-metric``; ``ids`` the ids; ``texts`` by tag what stands in it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.figures: dict[str, float] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.attributes.append((tag, found))
        assert len(found) == len(attrs), f"<{tag}> has an attribute twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if found.get("href"):
            self.links.append(str(found["href"]))
        if "data-metric" in found:
            name = str(found["data-metric"])
            value = float(str(found["data-value"]))
            assert self.figures.setdefault(name, value) == value, f"{name} has two values"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        text = data.replace("\N{NO-BREAK SPACE}", " ").strip()
        if self.open and text:
            self.texts.setdefault(self.open[-1], []).append(text)

    @property
    def headings(self) -> list[str]:
        return self.texts.get("h2", [])


def figures_of_tables(directory: Path) -> dict[str, float]:
    """Return figures that a report shows, straight from the tables."""
    run = open_run(directory)
    rounds = run.read("rounds").to_pydict()
    devices = run.read("device_rounds").to_pydict()
    evaluations: list[dict[str, Any]] = run.read("evaluations").to_pylist()
    latency = np.array([value for value in devices["latency_s"] if value is not None])
    found: dict[str, float] = {
        "rounds.completed": rounds["outcome"].count("completed"),
        "rounds.abandoned": rounds["outcome"].count("abandoned"),
        "rounds.duration_s.p95": float(np.percentile(rounds["duration_s"], 95)),
        "simulated_s": max(rounds["end_s"]),
        "device_rounds": len(devices["device"]),
        "outcomes.completed": sum(rounds["completed"]),
        "outcomes.dropped": sum(rounds["dropped"]),
        "latency_s.p50": float(np.percentile(latency, 50)),
        "bytes.down": sum(rounds["down_bytes"]),
        "bytes.up": sum(rounds["up_bytes"]),
        "bytes.wasted": sum(rounds["wasted_bytes"]),
        "bytes.lost": sum(rounds["lost_bytes"]),
        "bytes.up_payload": sum(rounds["up_payload_bytes"]),
        "bytes.download.down": sum(devices["download_down_bytes"]),
        "bytes.report.up": sum(devices["report_up_bytes"]),
        "energy_j": sum(rounds["energy_j"]),
        "wasted_compute_s": sum(devices["wasted_compute_s"]),
        "not_completed[compute,vanished]": sum(
            stage == "compute" and reason == "vanished"
            for stage, reason in zip(devices["stage"], devices["reason"], strict=True)
        ),
        "participation.devices": len(set(devices["device"])),
        "measured.wall_s": sum(rounds["wall_s"]),
    }
    rmse = [row["value"] for row in evaluations if row["metric"] == "rmse" and row["tag"] == "all"]
    found["accuracy[rmse,test,seen].last"] = rmse[-1]
    for name in set(devices["class"]):
        mine = [at for at, value in enumerate(devices["class"]) if value == name]
        done = sum(devices["outcome"][at] == "completed" for at in mine)
        found[f"participation[{name}]"] = done / len(mine)
        known = [devices["latency_s"][at] for at in mine if devices["latency_s"][at] is not None]
        found[f"report latency[{name}].p95"] = float(np.percentile(known, 95))
    return found
