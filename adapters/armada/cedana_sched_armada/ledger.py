"""State that Armada does not publish twice: stream positions, open preemptions, and jobs being resubmitted.

It is one text, written before its content takes effect. So after a coordinator crash at any time, streams resume at
their positions, and open preemptions stay open.
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

from cedana_sched.adapter.cluster_contract import Notes
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.retrying import retry
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.job_of_pod import Gang

log = structlog.get_logger(__name__)

VERSION = 1
"""Format version; other versions are incompatible."""
MOST_BYTES = 640 << 10
"""Limit of the compressed text; a ConfigMap holds 1 MiB at most."""
MOST_BYTES_UNPACKED = 64 << 20
"""JSON, mostly ids, which compresses to a fifth; text of another writer may compress to a thousandth."""
PROGRESS_SECONDS = 30.0
"""Minimum interval of writes of stream positions; events processed again after a restart are idempotent."""


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """One preempted job, and its pod if there was one. `id` is empty if the pod was not protected."""

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
    """Has state to save."""
    namespace_uid: str = ""
    """As in `WorkloadRef`."""

    @property
    def is_known_here(self) -> bool:
        """Whether it had a pod here, or was submitted by us: otherwise only its job is known."""
        return self.namespace != ""


class OpenPreemption(msgspec.Struct, frozen=True, omit_defaults=True):
    """One open preemption, of a job or a gang. Its uid is the signal's."""

    uid: str
    job_set: JobSet
    since: str
    """Stream position at the preemption."""
    job: str
    """The job of the first event."""
    members: tuple[Member, ...]
    """Protected members in our cluster; a gang may have others."""
    at: float
    """Armada's time of the decision, in seconds since the epoch."""
    observed_at: float
    not_after: float
    reason: str = ""
    preemptor: str = ""
    gang: Gang | None = None
    others: tuple[str, ...] = ()
    """Other jobs of the gang, which are resubmitted with it."""
    successors: dict[str, str] = {}
    """By old job: the successor shown by Armada."""
    finished: tuple[str, ...] = ()
    """Uids of pods that completed before they could be saved."""
    cancelled: str = ""
    """Why nothing is resubmitted."""
    doubtful: bool = False
    """Its pods are terminating, and no event has confirmed a preemption yet."""
    submitting_since: float | None = None
    """Start of a submission with unknown outcome."""

    @property
    def namespace(self) -> str:
        """Namespace of its pods; a doubtful case has some."""
        return self.members[0].namespace

    @property
    def jobs(self) -> tuple[str, ...]:
        return (*(member.job for member in self.members), *self.others)

    @property
    def has_state_to_save(self) -> bool:
        """Whether there is state to save: then the coordinator has a signal, and will release it."""
        return any(member.runs for member in self.members)


class AwaitedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that we have submitted and that has no pod yet."""

    job_set: JobSet
    namespace: str
    id: str
    index: int = 0


class _LedgerVersion(msgspec.Struct, omit_defaults=True):
    version: int = 1
    """Version 1 is omitted."""


class _LedgerState(_LedgerVersion, omit_defaults=True):
    streams: list[tuple[JobSet, str]] = []
    cases: list[OpenPreemption] = []
    awaited: dict[str, AwaitedJob] = {}


class Ledger:
    """The state in memory; `run` persists it.

    Args:
        notes: persistent storage.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.streams: dict[JobSet, str] = {}
        self.cases: dict[str, OpenPreemption] = {}
        self.awaited: dict[str, AwaitedJob] = {}
        self._urgent = asyncio.Event()
        self._stale = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []
        self._uids_of: dict[str, set[str]] = {}
        """By job id: open preemptions that contain it according to their pods."""
        self.doubtful: Counter[str] = Counter()
        """By namespace: number of open, doubtful preemptions."""
        self.on_doubt_over: Callable[[str], None] = lambda _: None
        """Called with the namespace of a preemption that ended, or is no longer doubtful."""

    async def load(self) -> None:
        """Load the state of an earlier coordinator, or an earlier run of this one; it replaces the current state.

        Raises:
            RetryableError: it cannot be read now.
        """
        written = await self._notes.read()
        state = _decode_state(written) if written else _LedgerState()
        self._waiting.clear()  # unwritten state is rebuilt from events
        self._uids_of.clear()
        self.doubtful.clear()
        self.cases.clear()
        self.streams = dict(state.streams)
        for case in state.cases:
            self._index_case(case)
        self.awaited = dict(state.awaited)
        log.info("armada's notes read", job_sets=len(self.streams), open=len(self.cases), awaited=len(self.awaited))

    def put_case(self, case: OpenPreemption, then: Callable[[], None] | None = None) -> None:
        """Record a case at once; `then` is called once it is persisted."""
        self._index_case(case)
        self.schedule_write(then)

    def drop_case(self, uid: str) -> None:
        """Drop a case that has ended."""
        case = self.cases.pop(uid, None)
        self._count_doubtful_cases(case, None)
        for job in case.jobs if case is not None else ():
            uids = self._uids_of.get(job, set())
            uids.discard(uid)
            if not uids:
                self._uids_of.pop(job, None)
        self.schedule_write()

    def forget_stream(self, job_set: JobSet) -> None:
        """Drop the position of a stream that is no longer watched."""
        if self.streams.pop(job_set, None) is not None:
            self._stale.set()

    def schedule_write(self, then: Callable[[], None] | None = None) -> None:
        """Schedule a prompt write."""
        if then is not None:
            self._waiting.append(then)
        self._stale.set()
        self._urgent.set()

    def record_position(self, job_set: JobSet, position: str) -> None:
        """Record a stream position; written with the next write, or after `PROGRESS_SECONDS`."""
        self.streams[job_set] = position
        self._stale.set()

    async def wait_until_persisted(self) -> None:
        """Wait until the current state is persisted."""
        done = asyncio.Event()
        self.schedule_write(done.set)
        await done.wait()

    def open_preemptions_of(self, job_set: JobSet) -> Iterable[OpenPreemption]:
        return [case for case in self.cases.values() if case.job_set == job_set]

    def has_open_work(self, job_set: JobSet) -> bool:
        """Whether the job set has an open preemption or an awaited job."""
        return job_set in self.open_job_sets()

    def open_job_sets(self) -> set[JobSet]:
        """Return all such job sets."""
        return _open_job_sets(self.cases.values(), self.awaited)

    def cases_with(self, job: str) -> list[OpenPreemption]:
        """Return the open preemptions with this job: one, unless other tenants' pods claim to be the job's."""
        return [case for uid in self._uids_of.get(job, ()) if (case := self.cases.get(uid)) is not None]

    async def run(self) -> None:
        """Persist changes, forever."""
        while True:
            await self._stale.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._urgent.wait()
            await self._write()

    def _index_case(self, case: OpenPreemption) -> None:
        self._count_doubtful_cases(self.cases.get(case.uid), case)
        self.cases[case.uid] = case
        for job in case.jobs:
            self._uids_of.setdefault(job, set()).add(case.uid)

    def _count_doubtful_cases(self, before: OpenPreemption | None, now: OpenPreemption | None) -> None:
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
            await retry("notes", self._write_text, CedanaSchedError)
        except asyncio.CancelledError:
            self._waiting = waiting + self._waiting
            raise
        for then in waiting:
            then()

    async def _write_text(self) -> None:
        """Encode in a thread: tenants determine the size, and this event loop renews the Lease."""
        content = dict(self.streams), list(self.cases.values()), dict(self.awaited)
        await self._notes.write(await asyncio.to_thread(encode_within_limit, *content))


def encode_within_limit(
    streams: Mapping[JobSet, str], cases: Sequence[OpenPreemption], awaited: dict[str, AwaitedJob]
) -> bytes:
    """Encode the state; if too large, without streams that have nothing open, then with fewer open cases.

    Tenants who create pods or submit jobs determine its size. After a restart an omitted stream starts with its pods, a
    case is detected again while its pods exist, and an awaited job once it has a pod.
    """
    text = _encode(streams, cases, awaited)
    if _is_within_size_limits(text):
        return text.packed
    noted = _positions_of_open_streams(streams, cases, awaited)
    log.warning("too many job sets for armada's notes", job_sets=len(streams), noted=len(noted))
    text = _encode(noted, cases, awaited)
    if _is_within_size_limits(text):
        return text.packed
    turns = _order_fairly([*cases, *awaited.items()])
    room = MOST_BYTES * sum(one.bytes for one in turns) // len(text.packed)
    while True:
        chosen = _select_fitting_items(turns, room)
        some = [one for one in chosen if isinstance(one, OpenPreemption)]
        others = dict(one for one in chosen if not isinstance(one, OpenPreemption))
        text = _encode(_positions_of_open_streams(streams, some, others), some, others)
        if _is_within_size_limits(text) or not chosen:
            break
        room = room * 3 // 4  # the compression ratio of a part is unknown
    counts = {"open": len(cases), "noted": len(some), "awaited": len(awaited), "awaited_noted": len(others)}
    log.warning("too many open preemptions for armada's notes", **counts)
    return text.packed


class _EncodedLedger(NamedTuple):
    packed: bytes
    bytes_unpacked: int


def _encode(
    streams: Mapping[JobSet, str], cases: Sequence[OpenPreemption], awaited: dict[str, AwaitedJob]
) -> _EncodedLedger:
    text = msgspec.json.encode(_LedgerState(VERSION, list(streams.items()), list(cases), awaited))
    return _EncodedLedger(zlib.compress(text), len(text))


def _is_within_size_limits(text: _EncodedLedger) -> bool:
    """Whether it can be written, and read again."""
    return len(text.packed) <= MOST_BYTES and text.bytes_unpacked <= MOST_BYTES_UNPACKED


def _positions_of_open_streams(
    streams: Mapping[JobSet, str], cases: Iterable[OpenPreemption], awaited: Mapping[str, AwaitedJob]
) -> Mapping[JobSet, str]:
    """Return the positions of streams with any of these."""
    return {job_set: streams[job_set] for job_set in _open_job_sets(cases, awaited) & streams.keys()}


def _open_job_sets(cases: Iterable[OpenPreemption], awaited: Mapping[str, AwaitedJob]) -> set[JobSet]:
    return {one.job_set for one in cases} | {one.job_set for one in awaited.values()}


_Open = OpenPreemption | tuple[str, AwaitedJob]
"""An open preemption, or a job being resubmitted."""


class _SizedItem(NamedTuple):
    open: _Open
    bytes: int
    """Size compressed alone, plus its uncompressed size scaled to that limit."""


def _order_fairly(everything: Iterable[_Open]) -> list[_SizedItem]:
    """Order fairly: owners with least first, doubtful cases last; within an owner the order is kept.

    So an owner of many or large items displaces none of another's.
    """
    taken: Counter[tuple[bool, str]] = Counter()
    ranked: list[tuple[bool, int, _SizedItem]] = []
    for one in everything:
        text = msgspec.json.encode(one)
        turn = _SizedItem(one, len(zlib.compress(text)) + len(text) * MOST_BYTES // MOST_BYTES_UNPACKED)
        owner = is_doubtful, _ = _fairness_key(one)
        taken[owner] += turn.bytes
        ranked.append((is_doubtful, taken[owner], turn))
    return [turn for _, _, turn in sorted(ranked, key=itemgetter(0, 1))]


def _fairness_key(one: _Open) -> tuple[bool, str]:
    """Return its queue; for a doubtful case, which any tenant can cause for any queue, the namespace."""
    if not isinstance(one, OpenPreemption):
        return False, one[1].job_set.queue
    return one.doubtful, one.namespace if one.doubtful else one.job_set.queue


def _select_fitting_items(turns: Iterable[_SizedItem], room: int) -> list[_Open]:
    """Return the items that fit, in order, skipping those that do not."""
    chosen = []
    for turn in turns:
        if turn.bytes <= room:
            room -= turn.bytes
            chosen.append(turn.open)
    return chosen


def _decompress_notes(written: bytes) -> bytes:
    """Decompress; raises zlib.error, and ValueError above the size limit."""
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(written, MOST_BYTES_UNPACKED)
    if unpacking.unconsumed_tail:
        raise ValueError(f"they are larger than {MOST_BYTES_UNPACKED:,} bytes")
    if not unpacking.eof:
        raise ValueError("they end too early")
    return text


def _decode_state(written: bytes) -> _LedgerState:
    try:
        text = _decompress_notes(written)
        version = msgspec.json.decode(text, type=_LedgerVersion).version
        if version == VERSION:
            return msgspec.json.decode(text, type=_LedgerState)
        problem = f"another version of the adapter has written them: version {version}, not {VERSION}"
    except (zlib.error, ValueError, RecursionError) as error:
        # an exception here would end the coordinator for every scheduler
        problem = str(error)
    log.warning(
        "armada's notes cannot be read, and are replaced: pending resubmissions are lost",
        error=problem,
        remedy="submit those jobs again that were preempted and have no successor",
    )
    return _LedgerState(VERSION)
