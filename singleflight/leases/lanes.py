"""Daemon threads, started when needed, that work through lanes: no lane waits for another one."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    Work = Callable[[], object]


class Lanes:
    """Runs work in daemon threads of its own; in each lane in order, and no lane waits for another one.

    A lane is any name, such as a store's, and exists while there is work in it. Whatever a piece of work
    raises is logged. A forked child starts afresh: what its parent had to do is its parent's.

    The locks are bare ones: an exception that is raised into a thread (a soft time limit) can leave the
    others of `threading` locked for ever.

    Args:
        name: the threads' name.
        abreast: how many pieces of work of one lane may run at once.
        most: how many threads there may be; beyond that, lanes are served one after the other.
    """

    def __init__(self, name: str, *, abreast: int = 1, most: int = 32) -> None:
        self._name, self._abreast, self._most = name, abreast, most
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        """Lanes of which a piece of work may begin, as often as it may."""
        self._idle: list[threading.Lock] = []
        """A bell for each thread that has nothing to do."""
        self._threads: set[threading.Thread] = set()

    def put(self, lane: Hashable, work: Work) -> None:
        """Have work done when what is in its lane already has been done, or begun in a wider lane.

        Raises:
            RuntimeError: if there is no thread and Python starts none any more, because it shuts down.
        """
        self._own()
        with self._lock:
            one = self._lanes.setdefault(lane, _Lane(lane))
            one.waiting.append(work)
            if one.threads < self._abreast:
                self._ready.append(one)
                one.threads += 1
                self._wake()

    def ready(self) -> None:
        """Start a thread ahead of its first work: Python starts none once the main thread has ended."""
        self._own()
        with self._lock:
            if not self._threads:
                self._start()

    def stop(self, timeout: float) -> bool:
        """Wait for the end of all work, at most ``timeout`` seconds, and of the threads; True if it came."""
        if self._pid != os.getpid():
            return True
        end = time.monotonic() + timeout
        while self._lanes and time.monotonic() < end:
            time.sleep(0.002)
        with self._lock:
            self._threads.clear()
            while self._idle:
                self._idle.pop().release()
        return not self._lanes

    def _own(self) -> None:
        """Start afresh in a forked child, where the locks may be held by threads that are not there."""
        if self._pid != os.getpid():
            self.__init__(self._name, abreast=self._abreast, most=self._most)  # type: ignore[misc]

    def _wake(self) -> None:
        """Have a thread look for work; called under the lock."""
        if self._idle:
            self._idle.pop().release()
        elif len(self._threads) < self._most:
            self._start()

    def _start(self) -> None:
        """Start a thread; if there are others, they do where no more can be had; called under the lock."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads.add(thread)

    def _run(self) -> None:
        bell = threading.Lock()
        bell.acquire()
        while True:
            with self._lock:
                lane = self._ready.popleft() if self._ready else None
                work = lane.waiting.popleft() if lane is not None and lane.waiting else None
                if lane is None:
                    if threading.current_thread() not in self._threads:
                        return  # stopped
                    self._idle.append(bell)
            if lane is None:
                bell.acquire()
                continue
            if work is not None:
                self._do(work)
            work = None  # what belongs to it must not live for as long as an idle thread
            with self._lock:
                self._go_on(lane)
            lane = None

    def _do(self, work: Work) -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it was, the other lanes still need this thread
            logger.exception("singleflight: %s goes on after an unexpected error", self._name)

    def _go_on(self, lane: _Lane) -> None:
        """Queue a lane again, behind the others, or close it; called under the lock."""
        if lane.waiting:
            self._ready.append(lane)
            return
        lane.threads -= 1
        if lane.threads <= 0:
            self._lanes.pop(lane.name, None)


class _Lane:
    """The work of one lane that has not begun, and how many threads work on it or are about to."""

    __slots__ = ("name", "threads", "waiting")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.waiting: deque[Work] = deque()
        self.threads = 0
