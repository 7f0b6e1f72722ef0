"""What Armada cannot tell again: where each stream stood, what is open, and which jobs come back.

It is one text, written before anybody acts on what is in it. So after the death of the coordinator at any instant the
streams go on where they stood, and whatever was open is open still.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec
import structlog

from cedana_sched.adapter.cluster import Notes
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.jobs import Gang
from cedana_sched_armada.retrying import until_done

log = structlog.get_logger(__name__)

VERSION = 1
"""Of what is written; notes of another one mean something else."""
MOST_BYTES = 640 << 10
"""Of the text; a ConfigMap holds 1 MiB at most."""
MOST_BYTES_UNPACKED = 64 << 20
"""It is JSON, mostly ids, and shrinks to a fifth; somebody else may have written what shrinks to a thousandth."""
PROGRESS_SECONDS = 30.0
"""Where a stream stands is written this often at most; what is read again after a restart changes nothing."""


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """One preempted job, and its pod where there was one. `id` is empty where the pod was not protected."""

    job: str
    run: str = ""
    namespace: str = ""
    id: str = ""
    index: int = 0
    pod: str = ""
    pod_uid: str = ""
    node: str = ""
    policy: str | None = None
    started_at: float | None = None
    runs: bool = False
    """There is something to save."""
    namespace_uid: str = ""
    """As of `WorkloadRef`."""

    @property
    def seen(self) -> bool:
        """Whether it had a pod here, or was submitted by us: else nobody here knows more than its job."""
        return self.namespace != ""


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One preemption that is not over: of a job, or of a gang. Its uid is the signal's."""

    uid: str
    job_set: JobSet
    since: str
    """The stream stood here when it was preempted."""
    job: str
    """The one that Armada named first."""
    members: tuple[Member, ...]
    """In our cluster, and protected; a gang may have others."""
    at: float
    """When Armada decided it, in seconds since the epoch."""
    observed_at: float
    not_after: float
    reason: str = ""
    preemptor: str = ""
    gang: Gang | None = None
    others: tuple[str, ...] = ()
    """Jobs of the gang that are not ours, and come back with it."""
    successors: dict[str, str] = {}
    """By old job: what Armada has shown in its place."""
    finished: tuple[str, ...] = ()
    """Pods (by uid) whose work was done before they could be saved."""
    cancelled: str = ""
    """Why nothing comes back."""
    doubtful: bool = False
    """Its pods are deleted, and Armada has not said yet that it has preempted it."""
    submitting_since: float | None = None
    """A submission was begun then, and its outcome is not known."""

    @property
    def namespace(self) -> str:
        """Of its pods, of which a doubtful one has some."""
        return self.members[0].namespace

    @property
    def jobs(self) -> tuple[str, ...]:
        return (*(member.job for member in self.members), *self.others)

    @property
    def held(self) -> bool:
        """Whether there is something to save: then the coordinator was told, and will say when it is over."""
        return any(member.runs for member in self.members)


class Awaited(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that we have submitted and that has no pod yet."""

    job_set: JobSet
    namespace: str
    id: str
    index: int = 0


class _Version(msgspec.Struct, omit_defaults=True):
    version: int = 1
    """The first is not named."""


class _State(_Version, omit_defaults=True):
    streams: list[tuple[JobSet, str]] = []
    cases: list[Case] = []
    awaited: dict[str, Awaited] = {}


class Ledger:
    """What is noted, in memory; `run` writes it.

    Args:
        notes: where it is kept.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.streams: dict[JobSet, str] = {}
        self.cases: dict[str, Case] = {}
        self.awaited: dict[str, Awaited] = {}
        self._urgent = asyncio.Event()
        self._stale = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []
        self._uids_of: dict[str, set[str]] = {}
        """By id of a job: the open preemptions that it is part of, as their pods say."""
        self.doubtful: Counter[str] = Counter()
        """By namespace: how many open preemptions are doubtful."""
        self.on_doubt_over: Callable[[str], None] = lambda _: None
        """Called with the namespace of one that is over, or not doubtful any more."""

    async def load(self) -> None:
        """Read what an earlier coordinator, or an earlier run of this one, has left; it replaces what is here.

        Raises:
            RetryableError: it cannot be read now.
        """
        written = await self._notes.read()
        state = _read(written) if written else _State()
        self._waiting.clear()  # what was not written is heard again
        self._uids_of.clear()
        self.doubtful.clear()
        self.cases.clear()
        self.streams = dict(state.streams)
        for case in state.cases:
            self._keep(case)
        self.awaited = dict(state.awaited)
        log.info("armada's notes read", job_sets=len(self.streams), open=len(self.cases), awaited=len(self.awaited))

    def put(self, case: Case, then: Callable[[], None] | None = None) -> None:
        """Note it at once; `then` is called when it is written."""
        self._keep(case)
        self.changed(then)

    def drop(self, uid: str) -> None:
        """It is over."""
        case = self.cases.pop(uid, None)
        self._count(case, None)
        for job in case.jobs if case is not None else ():
            uids = self._uids_of.get(job, set())
            uids.discard(uid)
            if not uids:
                self._uids_of.pop(job, None)
        self.changed()

    def forget(self, job_set: JobSet) -> None:
        """Its stream is not followed any more."""
        if self.streams.pop(job_set, None) is not None:
            self._stale.set()

    def changed(self, then: Callable[[], None] | None = None) -> None:
        """Something that may not get lost is different."""
        if then is not None:
            self._waiting.append(then)
        self._stale.set()
        self._urgent.set()

    def progressed(self, job_set: JobSet, position: str) -> None:
        """A stream stands there; written when it is convenient."""
        self.streams[job_set] = position
        self._stale.set()

    async def written(self) -> None:
        """Wait until everything that is noted now is written."""
        done = asyncio.Event()
        self.changed(done.set)
        await done.wait()

    def cases_of(self, job_set: JobSet) -> Iterable[Case]:
        return [case for case in self.cases.values() if case.job_set == job_set]

    def concerns(self, job_set: JobSet) -> bool:
        """Whether anything of it is open."""
        return job_set in self.job_sets()

    def job_sets(self) -> set[JobSet]:
        """All of which anything is open."""
        return _open_job_sets(self.cases.values(), self.awaited)

    def cases_with(self, job: str) -> list[Case]:
        """The open preemptions that this job is part of: one, but pods of others may say that they are the job's."""
        return [case for uid in self._uids_of.get(job, ()) if (case := self.cases.get(uid)) is not None]

    async def run(self) -> None:
        """Write, for ever."""
        while True:
            await self._stale.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._urgent.wait()
            await self._write()

    def _keep(self, case: Case) -> None:
        self._count(self.cases.get(case.uid), case)
        self.cases[case.uid] = case
        for job in case.jobs:
            self._uids_of.setdefault(job, set()).add(case.uid)

    def _count(self, before: Case | None, now: Case | None) -> None:
        if now is not None and now.doubtful:
            self.doubtful[now.namespace] += 1
        if before is not None and before.doubtful:
            self.doubtful[before.namespace] -= 1
            if now is None or not now.doubtful:
                self.on_doubt_over(before.namespace)

    async def _write(self) -> None:
        self._stale.clear()
        self._urgent.clear()
        waiting, self._waiting = self._waiting, []
        try:
            await until_done("notes", self._write_text)
        except asyncio.CancelledError:
            self._waiting = waiting + self._waiting
            raise
        for then in waiting:
            then()

    async def _write_text(self) -> None:
        """In a thread: whoever may create pods decides how much there is, and the lease is renewed on this loop."""
        content = dict(self.streams), list(self.cases.values()), dict(self.awaited)
        await self._notes.write(await asyncio.to_thread(packed, *content))


def packed(streams: Mapping[JobSet, str], cases: Sequence[Case], awaited: dict[str, Awaited]) -> bytes:
    """The text of all; where that is too much, without streams in which nothing is open, and with less that is open.

    Whoever may create pods, or submit jobs, decides how much there is, and how large. After a restart a stream that was
    left out begins with its pods, a case is seen again while its pods are there, and an awaited job once it has a pod.
    """
    text = _encode(streams, cases, awaited)
    if _fits(text):
        return text.packed
    noted = _streams_of(streams, cases, awaited)
    log.warning("too many job sets for armada's notes", job_sets=len(streams), noted=len(noted))
    text = _encode(noted, cases, awaited)
    if _fits(text):
        return text.packed
    turns = _in_turns([*cases, *awaited.items()])
    room = MOST_BYTES * sum(one.bytes for one in turns) // len(text.packed)
    while True:
        chosen = _as_fit(turns, room)
        some = [one for one in chosen if isinstance(one, Case)]
        others = dict(one for one in chosen if not isinstance(one, Case))
        text = _encode(_streams_of(streams, some, others), some, others)
        if _fits(text) or not chosen:
            break
        room = room * 3 // 4  # how far a text shrinks, nobody can say of its parts
    counts = {"open": len(cases), "noted": len(some), "awaited": len(awaited), "awaited_noted": len(others)}
    log.warning("too many open preemptions for armada's notes", **counts)
    return text.packed


class _Text(NamedTuple):
    packed: bytes
    bytes_unpacked: int


def _encode(streams: Mapping[JobSet, str], cases: Sequence[Case], awaited: dict[str, Awaited]) -> _Text:
    text = msgspec.json.encode(_State(VERSION, list(streams.items()), list(cases), awaited))
    return _Text(zlib.compress(text), len(text))


def _fits(text: _Text) -> bool:
    """Whether it can be written, and read again."""
    return len(text.packed) <= MOST_BYTES and text.bytes_unpacked <= MOST_BYTES_UNPACKED


def _streams_of(
    streams: Mapping[JobSet, str], cases: Iterable[Case], awaited: Mapping[str, Awaited]
) -> Mapping[JobSet, str]:
    """Those in which any of this is open."""
    return {job_set: streams[job_set] for job_set in _open_job_sets(cases, awaited) & streams.keys()}


def _open_job_sets(cases: Iterable[Case], awaited: Mapping[str, Awaited]) -> set[JobSet]:
    return {one.job_set for one in cases} | {one.job_set for one in awaited.values()}


_Open = Case | tuple[str, Awaited]
"""A preemption that is not over, or a job that comes back."""


class _Turn(NamedTuple):
    open: _Open
    bytes: int
    """Of its text, packed alone; and of its text unpacked, in proportion to what may be unpacked."""


def _in_turns(everything: Iterable[_Open]) -> list[_Turn]:
    """Whose owner has least comes first; then doubtful ones, likewise. Of one owner the order stays.

    So who has many, or large ones, keeps none of another's out.
    """
    taken: Counter[tuple[bool, str]] = Counter()
    ranked: list[tuple[bool, int, _Turn]] = []
    for one in everything:
        text = msgspec.json.encode(one)
        turn = _Turn(one, len(zlib.compress(text)) + len(text) * MOST_BYTES // MOST_BYTES_UNPACKED)
        owner = is_doubtful, _ = _owner(one)
        taken[owner] += turn.bytes
        ranked.append((is_doubtful, taken[owner], turn))
    return [turn for _, _, turn in sorted(ranked, key=itemgetter(0, 1))]


def _owner(one: _Open) -> tuple[bool, str]:
    """Its queue; of a doubtful case, which anybody may make of anybody's queue, the namespace."""
    if not isinstance(one, Case):
        return False, one[1].job_set.queue
    return one.doubtful, one.namespace if one.doubtful else one.job_set.queue


def _as_fit(turns: Iterable[_Turn], room: int) -> list[_Open]:
    """What is open in its turns, passing over that for which there is no room."""
    chosen = []
    for turn in turns:
        if turn.bytes <= room:
            room -= turn.bytes
            chosen.append(turn.open)
    return chosen


def _unpacked(written: bytes) -> bytes:
    """Raises zlib.error, and ValueError for more than we ever write."""
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(written, MOST_BYTES_UNPACKED)
    if unpacking.unconsumed_tail:
        raise ValueError(f"they are larger than {MOST_BYTES_UNPACKED:,} bytes")
    if not unpacking.eof:
        raise ValueError("they end too early")
    return text


def _read(written: bytes) -> _State:
    try:
        text = _unpacked(written)
        version = msgspec.json.decode(text, type=_Version).version
        if version == VERSION:
            return msgspec.json.decode(text, type=_State)
        problem = f"another version of the adapter has written them: version {version}, not {VERSION}"
    except (zlib.error, ValueError, RecursionError) as error:
        # a coordinator that ends by it would end for every scheduler
        problem = str(error)
    log.warning(
        "armada's notes cannot be read, and are begun anew: jobs that were to come back stay away",
        problem=problem,
        remedy="submit those jobs again that were preempted and have no successor",
    )
    return _State(VERSION)
