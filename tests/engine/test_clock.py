import asyncio
import contextvars
import gc
import heapq
import math
import random
from collections.abc import Callable, Iterator

import pytest

from edge.clock import virtual as clock
from edge.clock.virtual import DeadlineExceededError, Mailbox, VirtualClockLoop, sleep
from edge.core.errors import DeadlockError, UnsupportedPythonError


def loop_now() -> float:
    return asyncio.get_running_loop().time()


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        seen = [loop_now()]
        await sleep(1e6)
        seen.append(loop_now())
        await asyncio.sleep(0.5)
        seen.append(loop_now())
        return seen

    assert clock.run(main()) == [0.0, 1e6, 1e6 + 0.5]


@pytest.mark.parametrize("wait", [sleep, asyncio.sleep])
def test_equal_deadlines_fire_first_in_first_out(wait: object) -> None:
    order: list[int] = []

    async def one(name: int) -> None:
        await wait(5.0)  # type: ignore[operator]
        order.append(name)

    async def main() -> None:
        await asyncio.gather(*(one(name) for name in range(200)))

    clock.run(main())
    assert order == list(range(200))


def test_equal_deadlines_of_timers_and_sleeps_keep_their_order() -> None:
    order: list[str] = []

    async def sleeper(name: str) -> None:
        await sleep(3.0)
        order.append(name)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(sleeper("a"))
        await asyncio.sleep(0)
        loop.call_at(3.0, order.append, "b")
        second = asyncio.create_task(sleeper("c"))
        await asyncio.sleep(0)
        loop.call_later(3.0, order.append, "d")
        await asyncio.gather(first, second)
        await sleep(0)

    clock.run(main())
    assert order == ["a", "b", "c", "d"]


def trace_of_a_small_world(seed: int, idle_events: int) -> list[tuple[float, str]]:
    trace: list[tuple[float, str]] = []
    generator = random.Random(seed)

    async def actor(name: str) -> None:
        for step in range(5):
            await sleep(generator.choice([0.0, 1.0, 1.0, 2.5]))
            trace.append((loop_now(), f"{name}.{step}"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(idle_events):
            loop.call_at(float(number % 7), int)
        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(actor(name))

    clock.run(main())
    return trace


@pytest.mark.parametrize("seed", range(5))
def test_an_event_that_does_nothing_does_not_change_the_order_of_others(seed: int) -> None:
    quiet = trace_of_a_small_world(seed, 0)
    assert len(quiet) == 30
    assert trace_of_a_small_world(seed, 40) == quiet


def test_timeout_task_group_and_cancellation_work() -> None:
    async def main() -> tuple[float, bool, str]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await sleep(100.0)
        at_timeout = loop_now()
        task = asyncio.create_task(asyncio.sleep(50.0))
        await sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        caught = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(forever())
        except* RuntimeError as error:
            caught = str(error.exceptions[0])
        return at_timeout, task.cancelled(), caught

    async def fails() -> None:
        await sleep(1.0)
        raise RuntimeError("on purpose")

    async def forever() -> None:
        await sleep(1e9)

    assert clock.run(main()) == (2.0, True, "on purpose")


def test_cancelled_sleep_does_not_move_the_clock() -> None:
    async def main() -> float:
        long = asyncio.create_task(nap(1000.0))
        await sleep(1.0)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        await sleep(1.0)
        return loop_now()

    async def nap(seconds: float) -> None:
        await sleep(seconds)

    assert clock.run(main()) == 2.0


def test_deadlock_names_every_waiter_and_what_it_waits_for() -> None:
    async def waits_for_mail(mailbox: Mailbox) -> None:
        await mailbox

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        await sleep(2.5)
        reader = asyncio.create_task(waits_for_mail(Mailbox(loop, "device 7")), name="device 7")
        forever = asyncio.create_task(asyncio.Event().wait(), name="the other one")
        await asyncio.gather(reader, forever)

    with pytest.raises(DeadlockError) as caught:
        clock.run(main())
    text = str(caught.value)
    assert "at 2.500000 s" in text
    assert "device 7 waits for a message to device 7" in text
    assert "the other one waits for <Future pending" in text


def test_a_timer_at_infinity_never_fires_and_is_a_deadlock() -> None:
    async def main() -> None:
        await sleep(math.inf)

    with pytest.raises(DeadlockError, match="waits for time inf s"):
        clock.run(main())


def test_wrong_times_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="NaN"):
            sleep(math.nan)
        with pytest.raises(ValueError, match="NaN"):
            asyncio.get_running_loop().call_at(math.nan, int)
        before = loop_now()
        await sleep(-5.0)
        asyncio.get_running_loop().call_at(-100.0, int)
        await sleep(0.0)
        assert loop_now() == before

    clock.run(main())


def test_threads_and_real_loops_are_refused() -> None:
    async def in_thread() -> None:
        with pytest.raises(RuntimeError, match="cannot wait for a thread"):
            await asyncio.to_thread(int)

    async def on_a_real_loop() -> None:
        with pytest.raises(RuntimeError, match="needs a running VirtualClockLoop"):
            sleep(1.0)

    clock.run(in_thread())
    asyncio.run(on_a_real_loop())


def test_a_failing_callback_is_reported_and_the_loop_goes_on() -> None:
    reported: list[object] = []

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        loop.call_later(1.0, lambda: 1 / 0)
        await sleep(2.0)
        return "went on"

    assert clock.run(main()) == "went on"
    assert [type(error) for error in reported] == [ZeroDivisionError]


def test_contextvars_follow_tasks_and_timers() -> None:
    variable = contextvars.ContextVar("variable", default="outer")
    seen: list[str] = []

    async def inner() -> None:
        variable.set("inner")
        await sleep(1.0)
        seen.append(variable.get())
        asyncio.get_running_loop().call_later(1.0, lambda: seen.append(variable.get()))

    async def main() -> None:
        await asyncio.create_task(inner())
        seen.append(variable.get())
        await sleep(5.0)

    clock.run(main())
    assert seen == ["inner", "outer", "inner"]


class TestMailbox:
    def test_messages_come_in_order_and_before_the_deadline(self) -> None:
        async def main() -> list[object]:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualClockLoop)
            box = Mailbox(loop, "reader")
            box.set_deadline(5.0)
            loop.call_later(1.0, box.put, "a")
            loop.call_later(2.0, box.put, "b")
            got: list[object] = [await box, loop.time(), await box, loop.time()]
            box.put("c")
            await sleep(10.0)
            got.append(await box)  # it arrived in time, though it is read late
            with pytest.raises(DeadlineExceededError):
                await box
            return got

        assert clock.run(main()) == ["a", 1.0, "b", 2.0, "c"]

    def test_a_later_deadline_replaces_an_earlier_one(self) -> None:
        async def main() -> float:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualClockLoop)
            box = Mailbox(loop, "reader")
            box.set_deadline(5.0)
            box.set_deadline(8.0)
            with pytest.raises(DeadlineExceededError):
                await box
            return loop.time()

        assert clock.run(main()) == 8.0

    def test_a_full_mailbox_refuses_and_can_be_drained(self) -> None:
        async def main() -> tuple[list[bool], list[object]]:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualClockLoop)
            box = Mailbox(loop, "reader", limit=2)
            return [box.put(n) for n in range(3)], box.close()

        assert clock.run(main()) == ([True, True, False], [0, 1])


def test_many_tasks_leave_nothing_behind() -> None:
    async def one() -> None:
        await sleep(1.0)

    async def main() -> int:
        await asyncio.gather(*(one() for _ in range(100)))
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(5):
            await asyncio.gather(*(one() for _ in range(100)))
        gc.collect()
        return len(gc.get_objects()) - before

    assert clock.run(main()) < 200


def a_loop_without(name: str) -> Callable[[asyncio.BaseEventLoop], None]:
    begin = asyncio.BaseEventLoop.__init__

    def init(loop: asyncio.BaseEventLoop) -> None:
        begin(loop)
        delattr(loop, name)

    return init


def lifo(loop: VirtualClockLoop, when: float, entry: object) -> None:
    loop._sequence -= 1
    heapq.heappush(loop._timers, (when, loop._sequence, entry))


class TestAnotherAsyncio:
    """A Python whose asyncio differs is refused before anything runs on the clock."""

    @pytest.fixture(autouse=True)
    def unverified(self) -> Iterator[None]:
        clock._verify_once.cache_clear()
        yield
        clock._verify_once.cache_clear()

    def refusal(self) -> str:
        begun = []

        async def main() -> None:
            begun.append(True)

        with pytest.raises(UnsupportedPythonError) as caught:
            clock.run(main())
        assert not begun
        return str(caught.value)

    @pytest.mark.parametrize(
        ("name", "why"), [("_ready", "no attribute '_ready'"), ("_stopping", "has no _stopping;")]
    )
    def test_a_state_that_is_gone(self, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
        monkeypatch.setattr(asyncio.BaseEventLoop, "__init__", a_loop_without(name))
        assert why in self.refusal()

    def test_a_method_that_is_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(asyncio.BaseEventLoop, "_run_once")
        assert "has no _run_once;" in self.refusal()

    def test_a_loop_that_stops_in_another_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asyncio.BaseEventLoop, "stop", lambda _: None)
        assert "DeadlockError" in self.refusal()

    def test_a_call_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def timeout(_: float) -> None:
            raise TypeError("takes a deadline")

        monkeypatch.setattr(asyncio, "timeout", timeout)
        assert "TypeError: takes a deadline" in self.refusal()

    def test_another_order_of_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(VirtualClockLoop, "push_timer", lifo)
        assert "in place of" in self.refusal()

    def test_this_python_is_verified_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> float:
            return loop_now()

        assert clock.run(main()) == 0.0
        monkeypatch.setattr(clock, "_STORY", [])
        assert clock.run(main()) == 0.0
        with pytest.raises(UnsupportedPythonError, match="in place of"):
            clock.verify()


def test_a_handle_says_that_it_was_cancelled() -> None:
    async def main() -> list[bool]:
        handle = asyncio.get_running_loop().call_later(1.0, lambda: None)
        before = handle.cancelled()
        handle.cancel()
        return [before, handle.cancelled()]

    assert clock.run(main()) == [False, True]
