"""The virtual clock: an asyncio event loop whose time jumps to the next timer when nothing is ready.

Ordinary asyncio code runs on it unchanged (tasks, ``asyncio.timeout``, task groups, cancellation). There is
no selector and no thread: the only things that can happen next are ready callbacks and timers, so a run is
a pure function of its inputs. Timers with equal deadlines fire first-in first-out, which asyncio's own heap
of timers does not promise.

:func:`sleep` is the light way to wait here: its awaitable *is* the heap entry, and waking it steps the
waiting task directly, without a future, a handle and a second trip through the ready queue.

The loop overrides private parts of asyncio, which another Python may name or use otherwise. So :func:`run`
calls :func:`verify` once a process: on such a Python it ends in an error, not in a wrong order of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import math
import platform
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple

from edge.core.errors import DeadlockError, UnsupportedPythonError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_INFINITY = math.inf
_heappush = heapq.heappush
_DESCRIBED_WAITERS = 20
# -- whether asyncio is what the loop above takes it to be -----------------------------------------------

_OVERRIDDEN: Final = ("_run_once", "_process_events", "_write_to_self", "call_soon", "call_at", "call_later")
_STORY: Final = [
    ("first asyncio.sleep", 1.0),
    ("first sleep", 1.0),
    ("second asyncio.sleep", 1.0),
    ("second sleep", 1.0),
    ("cancelled asyncio.sleep", 1.5),
    ("cancelled sleep", 1.5),
    ("timeout", 3.5),
    ("timer", 4.5),
]
"""What :func:`_tell` writes down, with the virtual time in seconds."""


def _nothing(*_: object) -> None:
    """Stand in for the callback of a cancelled handle, which lets go of what it held."""


class _Handle:
    """A scheduled callback; carries the four fields that asyncio's own handle has."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, when: float
    ) -> None:
        self._callback = callback
        self._args: tuple[Any, ...] = args
        self._context = context
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class VirtualClockLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time.

    ``time()`` starts at 0.0 seconds. When nothing is ready it jumps to the earliest live timer; when there
    is none either, :class:`~edge.core.errors.DeadlockError` names every waiting task and what it waits for.
    """

    # Set by asyncio's base class, which does not declare them.
    _ready: deque[Any]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._timers: list[tuple[float, int, Any]] = []
        self._sequence = 0

    # -- what asyncio asks of a loop -------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds since the loop was made."""
        return self.now_s

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode measures callbacks in real time, which has no meaning here."""
        return False

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there is no selector."""

    def _write_to_self(self) -> None:
        """Do nothing: this loop never blocks, so nobody needs to wake it."""

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule ``callback`` behind everything that is ready now."""
        handle = _Handle(callback, args, context if context is not None else copy_context(), self.now_s)
        self._ready.append(handle)
        return handle  # type: ignore[return-value]  # has all that asyncio asks of one

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule ``callback`` at virtual time ``when`` (seconds); one at infinity never fires."""
        handle = _Handle(callback, args, context if context is not None else copy_context(), when)
        self.push_timer(when, handle)
        return handle  # type: ignore[return-value]

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule ``callback`` after ``delay`` seconds of virtual time."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Refuse: how long a thread takes is measured time, which must never move the virtual clock."""
        raise RuntimeError(
            "the virtual clock cannot wait for a thread or process; call the function directly, "
            "or run on the real clock"
        )

    # -- timers ----------------------------------------------------------------------------------------

    def last_timer_s(self) -> float:
        """Return when the last timer that is set will fire, seconds; now, when there is none."""
        live = (
            when for when, _, entry in self._timers if entry.__class__ is not _Handle or not entry.cancelled()
        )
        return max(live, default=self.now_s)

    def push_timer(self, when: float, entry: Any) -> None:
        """Put ``entry`` on the heap at ``when`` seconds: a handle, or an object with ``fire(when)``.

        ``fire`` is called when the time has come. It sets the clock to ``when``, which must not lie in the
        past, unless nobody waits for it any more: then it does nothing, and time stands still.
        """
        self._sequence = sequence = self._sequence + 1
        if when < _INFINITY:
            _heappush(self._timers, (when, sequence, entry))
        elif math.isnan(when):
            raise ValueError("a timer cannot be set at NaN seconds")

    def _run_once(self) -> None:
        ready = self._ready
        timers = self._timers
        pop_ready = ready.popleft
        pop_timer = heapq.heappop
        handle: Any = None
        while True:
            try:
                while ready:
                    handle = pop_ready()
                    if not handle._cancelled:
                        handle._context.run(handle._callback, *handle._args)
                if self._stopping:
                    return
                if not timers:
                    raise DeadlockError(self._describe_deadlock())
                when, _, handle = pop_timer(timers)
                if handle.__class__ is _Handle:
                    if not handle._cancelled:
                        self.now_s = max(self.now_s, when)
                        handle._context.run(handle._callback, *handle._args)
                else:
                    handle.fire(when)
            except (SystemExit, KeyboardInterrupt, DeadlockError):
                raise
            except BaseException as error:
                # As asyncio's own handles do: a failing callback is reported, the loop goes on.
                self.call_exception_handler(
                    {"message": f"Exception in callback {handle!r}", "exception": error}
                )

    def _describe_deadlock(self) -> str:
        waiting = sorted(
            f"{task.get_name()} waits for {_describe_waiter(task)}"
            for task in asyncio.all_tasks(self)
            if not task.done()
        )
        shown = waiting[:_DESCRIBED_WAITERS]
        if len(waiting) > len(shown):
            shown.append(f"and {len(waiting) - len(shown)} more")
        return f"virtual time stands still at {self.now_s:.6f} s: nothing is ready and no timer is set; " + (
            "; ".join(shown) if shown else "no task is waiting"
        )


def _describe_waiter(task: asyncio.Task[Any]) -> str:
    waiter = getattr(task, "_fut_waiter", None)
    describe = getattr(waiter, "describe", None)
    if describe is not None:
        return str(describe())
    return repr(waiter) if waiter is not None else "its first step"


class Awaitable:
    """A future-like awaitable with one waiter, woken directly by the virtual loop.

    Subclasses say what is waited for in :meth:`describe` and what the wait yields in :meth:`result`.
    """

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_error", "_loop")

    def __init__(self, loop: VirtualClockLoop) -> None:
        self._loop = loop  # asyncio reads it under this name, to check that it is the running one
        self._asyncio_future_blocking = False
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._error: BaseException | None = None

    def describe(self) -> str:
        """Return what the waiting task waits for, for a deadlock's message."""
        return type(self).__name__

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Register the waiting task's wake-up; called by asyncio."""
        self._callback = callback
        self._context = context

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Forget the waiting task; called by asyncio."""
        removed = 0 if self._callback is None else 1
        self._callback = None
        return removed

    def cancel(self, msg: object = None) -> bool:
        """Wake the waiting task with ``CancelledError``; called by asyncio when the task is cancelled."""
        return self._fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))

    def _fail(self, error: BaseException) -> bool:
        callback = self._callback
        if callback is None:
            return False
        self._callback = None
        self._error = error
        self._loop.call_soon(callback, self, context=self._context)
        return True

    def result(self) -> Any:
        """Raise what the wait failed with, if it failed; called by asyncio on wake-up."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle that would keep the waiting actor alive

    def __await__(self) -> Generator[Any, None, Any]:
        self._asyncio_future_blocking = True
        yield self
        return None


class _Sleep(Awaitable):
    """A wait for a moment of virtual time; the object is its own entry in the heap of timers."""

    __slots__ = ("_until_s",)

    def __init__(self, loop: VirtualClockLoop, until_s: float) -> None:
        # What super().__init__ does, without the cost of the call: this is the commonest object of a run.
        self._loop = loop
        self._asyncio_future_blocking = False
        self._callback = self._context = self._error = None
        self._until_s = until_s
        loop.push_timer(until_s, self)

    def fire(self, when: float) -> None:
        callback, context = self._callback, self._context
        if callback is not None and context is not None:
            self._callback = None
            self._loop.now_s = when
            context.run(callback, self)

    def describe(self) -> str:
        return f"time {self._until_s} s"


def sleep(delay_s: float) -> _Sleep:
    """Return an awaitable that ends ``delay_s`` seconds of virtual time from now.

    Works only under a running :class:`VirtualClockLoop`. A negative delay ends at once, behind everything
    that is due now; NaN raises ``ValueError``.
    """
    loop = events._get_running_loop()
    if not isinstance(loop, VirtualClockLoop):
        raise RuntimeError("sleep() of the virtual clock needs a running VirtualClockLoop")
    return _Sleep(loop, loop.now_s + delay_s if delay_s > 0 else loop.now_s + 0.0 * delay_s)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a new virtual clock and return its result.

    Raises
    ------
    UnsupportedPythonError : the clock goes wrong on this Python; ``main`` is not begun.
    """
    try:
        _verify_once()
    except UnsupportedPythonError:
        main.close()
        raise
    return _run(main)


def _run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def verify() -> None:
    """Run a short story on the virtual clock, which covers what recfleet uses of asyncio.

    Raises
    ------
    UnsupportedPythonError : a private part of asyncio is missing, or the story went otherwise.
    """
    seen: list[tuple[str, float]] = []
    try:
        missing = _missing_parts()
        if not missing:
            _run(_tell(seen))
    except Exception as error:
        raise _unsupported(f"a test of it ended with {type(error).__name__}: {error}") from error
    if missing:
        raise _unsupported(f"the event loop of its asyncio has no {', no '.join(missing)}")
    if seen != _STORY:
        raise _unsupported(f"a test of it saw {seen} in place of {_STORY}")


def _missing_parts() -> list[str]:
    missing = [name for name in _OVERRIDDEN if not hasattr(asyncio.BaseEventLoop, name)]
    with contextlib.closing(VirtualClockLoop()) as loop:
        if not isinstance(vars(loop).get("_ready"), deque):
            missing.append("deque _ready")
        # Without it a run would report its absence for ever.
        if vars(loop).get("_stopping") is not False:
            missing.append("_stopping")
    return missing


_verify_once = functools.cache(verify)


def _unsupported(why: str) -> UnsupportedPythonError:
    return UnsupportedPythonError(
        f"the virtual clock does not work on Python {platform.python_version()}: {why}; use a Python that "
        "recfleet was tested with, for example 3.12"
    )


async def _tell(seen: list[tuple[str, float]]) -> None:
    """Append what happens to ``seen``."""
    loop = asyncio.get_running_loop()

    async def nap(name: str, wait: Callable[[float], Awaitable | Coroutine[Any, Any, None]]) -> None:
        try:
            await wait(1.0)
        except asyncio.CancelledError:
            name = f"cancelled {name}"
        seen.append((name, loop.time()))

    async with asyncio.TaskGroup() as group:
        for order in ("first", "second"):
            group.create_task(nap(f"{order} asyncio.sleep", asyncio.sleep))
            group.create_task(nap(f"{order} sleep", sleep))
    naps = [
        asyncio.create_task(nap("asyncio.sleep", asyncio.sleep)),
        asyncio.create_task(nap("sleep", sleep)),
    ]
    await sleep(0.5)
    for task in naps:
        task.cancel()
    await asyncio.gather(*naps)
    try:
        async with asyncio.timeout(2.0):
            await sleep(60.0)
    except TimeoutError:
        seen.append(("timeout", loop.time()))
    loop.call_later(1.0, lambda: seen.append(("timer", loop.time())))
    await sleep(2.0)


class DeadlineExceededError(Exception):
    """The mailbox's deadline passed while its reader was waiting (or had passed before it asked)."""


class Mailbox(Awaitable):
    """A queue of messages for one reader: ``message = await mailbox``.

    Parameters
    ----------
    loop : the virtual loop.
    owner : who reads; its text is for a deadlock's message.
    limit : most messages held; one put beyond it is refused (``put`` returns False).

    ``set_deadline`` is absolute, in virtual seconds; from then on a wait without a message raises
    :class:`DeadlineExceededError`. Messages that arrived before are still read first.
    """

    __slots__ = ("_armed", "_deadline_s", "_limit", "_messages", "_owner")

    def __init__(self, loop: VirtualClockLoop, owner: object, limit: int = 1024) -> None:
        super().__init__(loop)
        self._owner = owner
        self._limit = limit
        self._messages: list[Any] = []
        self._deadline_s = math.inf
        self._armed = False
        """Whether a timer of this mailbox is set, at the deadline or at an earlier one that it replaced."""

    def describe(self) -> str:
        """Return what the reader waits for."""
        return f"a message to {self._owner}"

    def put(self, message: Any) -> bool:
        """Add ``message`` and wake the reader; return False when the mailbox is full.

        Only for callbacks of the loop (a frame that arrives): the reader runs before this returns.
        """
        if len(self._messages) >= self._limit:
            return False
        self._messages.append(message)
        callback, context = self._callback, self._context
        if callback is not None and context is not None:
            self._callback = None
            context.run(callback, self)
        return True

    def close(self) -> list[Any]:
        """Let go of the reader and return the messages that it has not read.

        A timer may hold the mailbox until its deadline; closed, it keeps nothing else alive.
        """
        messages, self._messages = self._messages, []
        self._owner = "a closed mailbox"
        self._callback = self._context = None
        return messages

    def set_deadline(self, when_s: float) -> None:
        """Let waits fail from ``when_s`` (absolute virtual seconds) on; it may only be moved back."""
        self._deadline_s = when_s

    def fire(self, when: float) -> None:
        """Pass the deadline, if a reader is waiting and it was not moved back; called by the loop."""
        self._armed = False
        if self._callback is None:
            return
        if when < self._deadline_s:
            self._arm()
        else:
            self._loop.now_s = when
            self._fail(DeadlineExceededError(str(self._owner)))

    def _arm(self) -> None:
        self._armed = True
        self._loop.push_timer(max(self._deadline_s, self._loop.now_s), self)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._messages:
            if self._loop.now_s >= self._deadline_s:
                raise DeadlineExceededError(str(self._owner))
            if not self._armed:
                self._arm()
            self._asyncio_future_blocking = True
            yield self
        return self._take()

    def _take(self) -> Any:
        """Return what the reader gets: the message that came first."""
        return self._messages.pop(0)
