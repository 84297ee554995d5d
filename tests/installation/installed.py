"""A wheel of this source tree, installed where nothing else of it is to be found; commands are run there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAYS = "the dashboard stays until Ctrl-C"
"""What is said by a command that goes on when its run is over."""


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of a source tree or distribution into a folder."""
    build = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    pip(*build)
    (wheel,) = folder.glob("recfleet-*.whl")
    return wheel


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Installation:
    """An environment of its own that the wheel is installed in, and an unused home."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XDG_"))}
        home = self.folder / "home"
        return {**kept, "HOME": str(home), "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(self, line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell in a folder."""
        return subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env={**self.environment(), **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def run_until_interrupted(self, line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a line that goes on when its run is over, and interrupt it then."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=folder,
            env={**self.environment(), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            assert process.stdout is not None
            printed = []
            for text in process.stdout:
                printed.append(text)
                if text.startswith(STAYS):
                    process.send_signal(signal.SIGINT)
        return subprocess.CompletedProcess(line, process.returncode, "".join(printed), "")


def install(folder: Path, wheel: Path) -> Installation:
    """Make an environment with the wheel in it, and with the dependencies of the one that runs the tests."""
    made = Installation(folder)
    (folder / "home").mkdir()
    venv.create(folder / "venv", symlinks=True)
    pip("--python", str(made.bin / "python"), "install", "--quiet", "--no-deps", str(wheel))
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    # Such files in a folder that is named by one are not read, so an editable recfleet there is not seen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return made
