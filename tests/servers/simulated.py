"""A store in memory with a clock of its own, whose every operation waits for its turn.

With it a test decides in which order the operations of several actors happen: each actor is a thread, and exactly one
of them runs at a time, from one operation of the store to its next.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store.backend import Backend, Buffer, Entry, MissingObjectError, Sink, oversized_error


class SimulatedBackend(Backend):
    """See `Backend`. `turn` is called before every operation; `time` is what the store's clock shows."""

    description = "a simulated store"

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.turn: Callable[[], None] = lambda: None
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.changes = 0
        self.deadlines: dict[int, float] = {}

    def give_up_writes_after(self, deadline: float | None) -> None:
        """Model the time-outs of this thread's requests."""
        self.deadlines[threading.get_ident()] = float("inf") if deadline is None else deadline

    def put(self, key: str, data: Buffer) -> None:
        self.turn()
        if self.time > self.deadlines.get(threading.get_ident(), float("inf")):
            raise StoreUnavailableError("the request timed out")
        self.changes += key not in self.objects
        self.objects[key] = (bytes(data), self.time)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self.turn()
        if self.time > self.deadlines.get(threading.get_ident(), float("inf")):
            raise StoreUnavailableError("the request timed out")
        if key in self.objects:
            return False
        self.changes += 1
        self.objects[key] = (bytes(data), self.time)
        return True

    def open_sink(self, key: str) -> Sink:
        raise NotImplementedError

    def get(self, key: str, *, at_most: int) -> bytes:
        data = self.get_range(key, 0, at_most + 1)
        if len(data) > at_most:
            raise oversized_error(key, len(data), at_most)
        return bytes(data)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        self.turn()
        if key not in self.objects:
            raise MissingObjectError(key)
        return self.objects[key][0][offset : offset + length]

    def list(self, prefix: str) -> Iterator[Entry]:
        self.turn()
        found = [(key, *value) for key, value in self.objects.items() if key.startswith(f"{prefix}/")]
        return iter([Entry(key, len(data), modified) for key, data, modified in sorted(found)])

    def folder_names(self, prefix: str) -> tuple[str, ...]:
        raise NotImplementedError

    def stat(self, key: str) -> Entry | None:
        self.turn()
        if key not in self.objects:
            return None
        data, modified = self.objects[key]
        return Entry(key, len(data), modified)

    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self.turn()
            self.changes += self.objects.pop(key, None) is not None

    def store_time(self) -> float:
        self.turn()
        return self.time

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        return 0


class Interleaving:
    """Runs actors against one simulated store, in an order that a seed decides.

    `switch` is how often another actor goes on than the one that just did: rarely makes long pauses of the others.
    """

    def __init__(self, backend: SimulatedBackend, seed: int, switch: float) -> None:
        self._backend = backend
        self._source = random.Random(seed)
        self._switch = switch
        self._waiting: dict[int, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._numbers: dict[int, int] = {}
        self._ended: set[int] = set()
        self._errors: list[BaseException] = []

    def run(self, actors: list[Callable[[], None]], advances: list[float], after: Callable[[], None]) -> None:
        """Let all actors end; between any two operations the clock may advance.

        `after` looks at the store whenever something was created or removed.
        """
        threads = [threading.Thread(target=self._act, args=(number, actor)) for number, actor in enumerate(actors)]
        self._backend.turn = self._wait
        self._waiting = {number: threading.Semaphore(0) for number in range(len(actors))}
        alive = set(self._waiting)
        for thread in threads:
            thread.start()
        number = seen = 0
        while alive:
            if number not in alive or self._source.random() < self._switch:
                number = self._source.choice(sorted(alive))
            self._backend.time += self._source.choice(advances)
            self._waiting[number].release()
            self._back.acquire()
            if number in self._ended:
                alive.discard(number)
            if self._backend.changes != seen:
                seen = self._backend.changes
                turn, self._backend.turn = self._backend.turn, lambda: None
                after()
                self._backend.turn = turn
        for thread in threads:
            thread.join()
        self._backend.turn = lambda: None
        if self._errors:
            raise self._errors[0]

    def _act(self, number: int, actor: Callable[[], None]) -> None:
        self._numbers[threading.get_ident()] = number
        self._waiting[number].acquire()
        try:
            actor()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._errors.append(error)
        finally:
            self._ended.add(number)
            self._back.release()

    def _wait(self) -> None:
        number = self._numbers[threading.get_ident()]
        self._back.release()
        self._waiting[number].acquire()
