"""A real ``recfleet serve`` in a process of its own, and what its /metrics say."""

import atexit
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parents[1]
_STATE = tempfile.TemporaryDirectory(prefix="recfleet-state-")
atexit.register(_STATE.cleanup)
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "XDG_STATE_HOME": _STATE.name,
}  # fmt: skip
COMMAND = (sys.executable, "-m", "coordinator.cli")
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


@dataclass
class Serving:
    """A service that runs."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)


def recfleet(folder: Path, *arguments: str) -> str:
    """Run a command to its end; return what it prints."""
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"recfleet {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def serving(folder: Path, scenario: str, *options: str) -> Iterator[Serving]:
    """Serve a scenario from ``folder`` into ``folder/run``, with what it prints beside that."""
    (folder / "scenario.yaml").write_text(scenario)
    errors = folder / "serve.err"
    with open(folder / "serve.out", "w") as out, open(errors, "w") as err:
        process = subprocess.Popen(
            [*COMMAND, "serve", "scenario.yaml", "--port", "0", "--out", "run", *options],
            cwd=folder, env=ENVIRONMENT, stdout=out, stderr=err, text=True,
        )  # fmt: skip
        try:
            with open(errors) as lines:
                yield Serving(process, _url(process, lines))
        finally:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[str], lines: Iterator[str]) -> str:
    """Return where a service listens, once it says so."""
    said = ""
    while process.poll() is None:
        said += "".join(lines)
        found = re.search(r"listening at (\S+);", said)
        if found:
            return found[1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise SystemExit(f"the service ended before it listened:\n{said}{''.join(lines)}")


async def metrics(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return the samples of /metrics, by name and labels as they are written."""
    async with http.get(url + "/metrics") as answer:
        text = await answer.text()
    return {
        name + (f"{{{labels}}}" if labels else ""): float(value)
        for name, labels, value in _SAMPLE.findall(text)
    }
