"""Where a run lies on disk, and what becomes of the one that lay there before.

A run called ``quickstart-7-1f0c29ab`` is written to ``quickstart-7-1f0c29ab.partial``. When it is finished
the directory takes its plain name, in place of an earlier finished run of that name (the command asks for
``--overwrite`` where that run was another, or measured). So the plain name always
is a finished run; a killed, failed or interrupted one stays under ``.partial``, readable, until the next run
of the same name begins, and never costs the finished one. ``--out DIR`` is treated in the same way.

While a run is written its process holds a lock on the directory, which ends with the process. A second run of
the same name is refused as long as the first is alive.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy.typing as npt
import psutil

from coordinator.engine.crashes import npz_bytes
from coordinator.engine.host import host_facts
from coordinator.engine.run_files import (
    ENDED,
    MANIFEST,
    MODEL,
    PARTIAL_SUFFIX,
    RESOLVED_SCENARIO,
    Status,
    write_atomically,
)
from coordinator.results.tables.reader import read_manifest
from coordinator.results.tables.schemas import SCHEMA_VERSION
from edge.core.errors import RecfleetError

_HASH_DIGITS: Final = 8


class RunDirectoryError(RecfleetError):
    """A run directory that cannot be written; the message says what is in the way."""


def run_name(title: str, seed: int, scenario_hash: str) -> str:
    """Return the directory name of a run: ``<scenario>-<seed>-<short hash>``.

    Parameters
    ----------
    title : the scenario file's name without its suffix; anything but letters, digits, ``.`` and ``_`` becomes
        a hyphen.
    seed : of the run.
    scenario_hash : hexadecimal hash of the resolved scenario.
    """
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", title).strip("-.") or "run"
    return f"{plain}-{seed}-{scenario_hash[:_HASH_DIGITS]}"


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they exist.

    Raises
    ------
    RunDirectoryError : it cannot be made, or nothing can be written to it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"{folder}: cannot be made ({error.strerror}); give another --out") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunDirectoryError(f"{folder}: cannot be written to; give another --out, or change its mode")


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write JSON atomically, keys in their order; a NaN or infinity is refused with ``ValueError``."""
    text = json.dumps(contents, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text.encode() + b"\n")


@contextmanager
def private_files() -> Iterator[None]:
    """Let what this process makes meanwhile belong to its owner alone: directories 0700, files 0600."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def shut_out_others(paths: Iterable[Path]) -> list[Path]:
    """Take the rights of everybody but the owner from files and directories; return those that had some."""
    wide = [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o077]
    for path in wide:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)
    return wide


def _lock(directory: Path) -> int | None:
    """Return a descriptor that holds the directory's lock, or None when another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_being_written(directory: Path) -> bool:
    """Return whether a living process is writing the run in this directory."""
    descriptor = _lock(directory)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def run_status(directory: Path, manifest: Mapping[str, Any]) -> str:
    """Return the manifest's status, or ``killed`` when it says running and nobody is."""
    status = str(manifest.get("status", "unknown"))
    if status == "running" and not is_being_written(directory):
        return "killed"
    return status


def _is_run(directory: Path) -> bool:
    """Return whether a run lies in a directory: other programs have files called ``manifest.json``, too."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.keys() >= {"schema_version", "status", "host"}


def require_no_finished_run(target: Path) -> None:
    """Refuse a target at which a finished run lies, or something that is none.

    Raises
    ------
    RunDirectoryError : the message names the option that replaces a run.
    """
    _require_replaceable(target)
    if _is_run(target):
        raise RunDirectoryError(
            f"{target}: holds a finished run; replace it with --overwrite, or give another --out"
        )


def _require_replaceable(target: Path) -> None:
    if target.exists() and not _is_run(target) and not (target.is_dir() and not any(target.iterdir())):
        raise RunDirectoryError(
            f"{target}: is not a run directory (it has no {MANIFEST} of one) and is not replaced; "
            "remove it, or give another --out"
        )


class RunDirectory:
    """The directory of a run that is being written; from :meth:`create`.

    Attributes
    ----------
    path : where the run lies now: under ``.partial`` until :meth:`finish` has given it its name.
    """

    def __init__(self, target: Path, path: Path, descriptor: int, manifest: dict[str, Any]) -> None:
        self.path = path
        self._target = target
        self._descriptor: int | None = descriptor
        self._manifest = manifest

    @classmethod
    def create(
        cls,
        target: Path,
        resolved_scenario: str,
        manifest: Mapping[str, Any],
        kept: Mapping[str, Path] | None = None,
        prepare: Callable[[Path], None] = lambda _folder: None,
    ) -> RunDirectory:
        """Create the directory, with scenario and manifest in it, in one step.

        Parameters
        ----------
        target : the path the finished run shall have.
        resolved_scenario : YAML text of the scenario with all defaults.
        manifest : what the caller knows: ``seed``, ``scenario_hash``, ``split_hash`` …; the schema version,
            the host's facts and the status are added.
        kept : directories to be copied into the new one, by their names there; they may lie in the run that
            this one replaces.
        prepare : makes in the directory whatever else must be there from the first moment on.

        Raises
        ------
        RunDirectoryError
            When ``target`` is something else than a run or cannot be written, or a living process is writing
            this run.
        """
        _require_replaceable(target)
        make_folder(target.parent)
        partial = target.with_name(target.name + PARTIAL_SUFFIX)
        whole = _running(manifest)
        # Made under a name of our own, locked, then moved: nobody ever sees it empty or unlocked.
        fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
        _remove_leftovers(target)
        fresh.mkdir()
        descriptor = _lock(fresh)
        if descriptor is None:
            raise RunDirectoryError(f"{fresh}: locked by another process")
        try:
            write_atomically(fresh / RESOLVED_SCENARIO, resolved_scenario.encode())
            write_json(fresh / MANIFEST, whole)
            for name, source in (kept or {}).items():
                shutil.copytree(source, fresh / name)
            prepare(fresh)
            _clear(partial, target)
            fresh.rename(partial)
        except BaseException:
            os.close(descriptor)
            shutil.rmtree(fresh)
            raise
        return cls(target, partial, descriptor, whole)

    @classmethod
    def reopen(cls, target: Path) -> RunDirectory:
        """Return the unfinished directory of the run with that target, locked, and as it was left.

        Raises
        ------
        RunDirectoryError : there is none, or a living process is writing it.
        """
        partial = target.with_name(target.name + PARTIAL_SUFFIX)
        if not partial.is_dir():
            raise RunDirectoryError(f"{partial}: there is no such directory; there is nothing to go on with")
        descriptor = _lock(partial)
        if descriptor is None:
            raise RunDirectoryError(f"{partial}: another process is writing this run; wait for it")
        return cls(target, partial, descriptor, {})

    def begin_again(self, resolved_scenario: str, manifest: Mapping[str, Any]) -> None:
        """Write scenario and manifest as :meth:`create` does, into a directory from :meth:`reopen`."""
        self._manifest = _running(manifest)
        write_atomically(self.path / RESOLVED_SCENARIO, resolved_scenario.encode())
        self.write_json(MANIFEST, self._manifest)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # One that was reopened, and not begun again, stays as it was left.
        if error is not None and self._manifest.get("status") == "running":
            self._abandon("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        self._release()

    def _abandon(self, status: Status) -> None:
        """Write how the run ended by an error that is under way."""
        try:
            self.finish(status)
        except OSError:
            # A full disk cannot hold that either. Without the lock, what still says running was killed.
            return

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write_json(self, name: str, contents: Mapping[str, Any]) -> None:
        """Write a JSON file of the run, for example the summary."""
        write_json(self.path / name, contents)

    def write_model(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the final global state as ``model.npz``; equal arrays give equal bytes."""
        write_atomically(self.path / MODEL, npz_bytes(arrays))

    def finish(self, status: Status, **facts: Any) -> Path:
        """Write the last manifest, give a run that went to its end its name, and return where the run lies.

        Parameters
        ----------
        status : one of ``ENDED``, also when thresholds were missed; ``interrupted`` or ``failed``: it stays
            where it is.
        facts : added to the manifest, for example ``digest`` and measured times.
        """
        self._manifest.update(facts)
        self._manifest["status"] = status
        write_json(self.path / MANIFEST, self._manifest)
        if status in ENDED:
            _publish(self.path, self._target)
            self.path = self._target
        self._release()
        return self.path


def _running(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a run that goes on: the caller's facts, the host, and the status."""
    return {"schema_version": SCHEMA_VERSION, "status": "running", **manifest, "host": host_facts()}


def _clear(partial: Path, target: Path) -> None:
    """Make way for a new partial run: publish a finished one, remove a dead one, refuse a living one."""
    if not partial.exists():
        return
    if not _is_run(partial):
        raise RunDirectoryError(f"{partial}: is not a run directory and is in the way; move it elsewhere")
    descriptor = _lock(partial)
    if descriptor is None:
        raise RunDirectoryError(
            f"{partial}: another process is writing this run; wait for it, or give another --out"
        )
    try:
        # A process that died between its last manifest and the change of name left a finished run.
        if read_manifest(partial).get("status") in ENDED:
            _publish(partial, target)
        else:
            _remove(partial)
    finally:
        os.close(descriptor)


def _remove_leftovers(target: Path) -> None:
    """Delete what killed processes have left of making and replacing the run at ``target``."""
    of_process = re.compile(
        rf"\.{re.escape(target.name)}(?:{re.escape(PARTIAL_SUFFIX)})?\.([0-9]+)\.(?:new|old)"
    )
    for entry in target.parent.iterdir():
        match = of_process.fullmatch(entry.name)
        if match is None or (int(match[1]) != os.getpid() and psutil.pid_exists(int(match[1]))):
            continue
        if not is_being_written(entry):  # by a process of another host or container
            shutil.rmtree(entry)


def _remove(directory: Path) -> None:
    """Take a run out of sight in one step, then delete it."""
    doomed = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    directory.rename(doomed)
    shutil.rmtree(doomed)


def _publish(partial: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        partial.rename(target)  # an empty directory gives way
        return
    doomed = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(doomed)
    partial.rename(target)
    shutil.rmtree(doomed)
