"""What docs/operations.md says in numbers is what the code has: who changes one is led to the sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.agent import capture_watchdog, deadline_thaws, dump_budget, orphan_processes, restore_orders
from cedana_sched.agent import garbage as collecting
from cedana_sched.cli.doctor.machine import OLDEST_KERNEL
from cedana_sched.cluster.coordinator import (
    checkpoint_finalizer,
    container_restarts,
    event_publisher,
    metrics,
    missed_restores,
    storage_probe,
)
from cedana_sched.cluster.coordinator.main import LEASE_NAME
from cedana_sched.cluster.coordinator.redo_log import LOG_NAME, SLOTS
from cedana_sched.cluster.node import kubelet_thresholds, prestop_server
from cedana_sched.cluster.node.capture_cgroups import PARENT
from cedana_sched.cluster.node.containers import containerd_wait
from cedana_sched.cluster.node.restoring.pod_restorer import RESTORE_SECONDS
from cedana_sched.cluster.prestop_proxy import call_forwarder, call_limits
from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.component import callers
from cedana_sched.coordinator import clock
from cedana_sched.coordinator.core import Timing, restore_obstacles
from cedana_sched.eviction_holds.decision import UNANNOUNCED_SECONDS
from cedana_sched.kube import events, server_time, token_access
from cedana_sched.kube.lease import LeaseTiming
from cedana_sched.local.jobs.job_event_rules import MOST_LOSSES
from cedana_sched.model.manifest import FORMAT_VERSION
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS
from cedana_sched.model.preemption import CONFIRMATION_SECONDS
from cedana_sched.runtime_handler import progress_signs, wait
from cedana_sched.snapshot.stall_detection import STORE_FACTOR
from cedana_sched.store import (
    bounded_listing,
    chunk_pipeline,
    credential_renewal,
    garbage,
    garbage_detection,
    page_classification,
    page_fingerprint_cache,
    reader,
)
from cedana_sched.store.sealing import data_keys
from cedana_sched_volcano.extender import address_secret, claims, server

PAGE = " ".join((Path(__file__).parents[3] / "docs/operations.md").read_text().split())
TIMING = Timing()
LEASE = LeaseTiming()
HOLD_AWAY_SECONDS: float = PreStopProxyConfiguration.model_fields["agent_away_seconds"].default
DAMAGED_SECONDS = sum(TIMING.retry_backoff(attempt) for attempt in range(1, restore_orders.DAMAGED_TIMES))
KUBELETS = kubelet_thresholds.reserve_of([kubelet_thresholds._HARD])
"""What stays free where the kubelet says nothing."""

SENTENCES: list[tuple[str, tuple[float | str, ...], tuple[float | str, ...]]] = [
    ("The fifth loss fails it", (MOST_LOSSES,), (5,)),
    ("by a return five times within 15 s", (restore_orders.DAMAGED_TIMES, DAMAGED_SECONDS), (5, 15)),
    ("each read is repeated, with pauses, for two minutes", (reader.PATIENCE_SECONDS,), (120,)),
    ("ended after 30 s without a sign of life", (progress_signs.STALL_SECONDS,), (30,)),
    ("is tried once more at once, within 110 s in all", (RESTORE_SECONDS,), (110,)),
    ("the store takes nothing for twice as long", (STORE_FACTOR,), (2,)),
    ("ended after four times as long without a byte", (capture_watchdog.QUIET_FACTOR,), (4,)),
    ("it is killed a minute after the release", (TIMING.patience,), (60,)),
    ("a pod that is deleted is held for an hour at most", (prestop_server.LONGEST_SECONDS,), (3600,)),
    ("after the grace period (15 minutes) removes them", (garbage.GRACE_SECONDS,), (900,)),
    ("each namespace at most once in five minutes", (collecting.EVERY_SECONDS,), (300,)),
    ("free after 16 to 45 minutes", (garbage_detection.SECOND_RUN_SECONDS,), (16 * 60,)),
    (
        "within a day, and once more 16 minutes later",
        (garbage_detection.IDLE_SECONDS, garbage_detection.SECOND_RUN_SECONDS),
        (24 * 3600, 16 * 60),
    ),
    ("16 bytes for each page", (page_classification.FINGERPRINT_BYTES,), (16,)),
    ("They take at most 2 GiB (`agent.cacheBytes` in the chart)", (page_fingerprint_cache.CACHE_BYTES,), (2 << 30,)),
    ("another replica leads within 20 s (a lease lasts `coordinator.lease.duration`, 15 s)", (LEASE.duration,), (15,)),
    (
        "is held for half a minute, and so is a pod that is deleted; then they proceed",
        (UNANNOUNCED_SECONDS, CONFIRMATION_SECONDS),
        (30, 30),
    ),
    ("(ConfigMaps `cedana-sched-journal`, `-0` to `-31`)", (LOG_NAME, SLOTS), ("cedana-sched-journal", 32)),
    ("get lease cedana-sched-coordinator", (LEASE_NAME,), ("cedana-sched-coordinator",)),
    ("ends after 15 min without one, and is started again", (wait.SILENT_SECONDS,), (900,)),
    (
        "once containerd has run for three seconds, or after a minute without it",
        (containerd_wait.SETTLED_SECONDS, containerd_wait.LONGEST_SECONDS),
        (3, 60),
    ),
    (
        "was started anew within ten minutes",
        (container_restarts.LATE_SECONDS, missed_restores.LATE_SECONDS),
        (600, 600),
    ),
    ("says within five minutes whether a bucket answers", (storage_probe.PROBE_SECONDS,), (300,)),
    ("An Event that is repeated within ten minutes is counted", (events.SAME_SECONDS,), (600,)),
    ("Of more than 10,000 warnings that wait to be written", (events.KEPT,), (10_000,)),
    ("a namespace with fewer than 100 keeps each of them", (events.KEPT // events.SHARES,), (100,)),
    ("on 20 of them at most", (event_publisher.MOST_VICTIMS,), (20,)),
    ("has not been deleted for a minute: it is killed", (TIMING.patience,), (60,)),
    ("was killed, thawed or started, two minutes after the deadline", (TIMING.confirm,), (120,)),
    ("its snapshot could not be removed for ten minutes", (checkpoint_finalizer.PATIENCE_SECONDS,), (600,)),
    ("stays free: 1 % more than what the node's kubelet", (kubelet_thresholds.MARGIN,), (0.01,)),
    ("16 %, and 6 % of the inodes, where it does not say", (KUBELETS.share, KUBELETS.inode_share), (0.16, 0.06)),
    ("and keeps the answer for a minute", (token_access.KEPT_SECONDS,), (60,)),
    ("for which Volcano called within half a minute", (claims.FORGOTTEN_SECONDS,), (30,)),
    (
        "use it 5 s later, and accept the old",
        (callers.SETTLE_SECONDS, callers.FORMER_SECONDS),
        (5, 60),
    ),
    ("are answered for an hour more", (address_secret.FORMER_SECONDS,), (3600,)),
    ("write at least 22 letters and digits there", (callers.SHORTEST_SECRET,), (22,)),
    (
        "64 calls at a time, of 64 MiB at most and 192 MiB together",
        (server.AT_ONCE, server.LONGEST_REQUEST_BYTES, server.BYTES_AT_ONCE),
        (64, 64 << 20, 192 << 20),
    ),
    (
        "keeps 512 calls of one pod open at most, and 2,048 in all",
        (call_limits.MOST_OF_A_POD, call_forwarder.MOST_OPEN),
        (512, 2048),
    ),
    ("for `agent.holdAwaySeconds` (2 min) without an agent", (HOLD_AWAY_SECONDS,), (120,)),
    ("its format version; so far there is only 1", (FORMAT_VERSION,), (1,)),
    ("kernels before 5.9", OLDEST_KERNEL, (5, 9)),
    (
        "`agent.dumps.memoryBytesEach` (1 GiB), and 1/256 of what the workload has",
        (dump_budget.DUMPS_MEMORY_BYTES_EACH, dump_budget.PAGES_SHARE),
        (1 << 30, 1 / 256),
    ),
    ("a control group of its own below `cedana-sched-captures`", (PARENT,), ("cedana-sched-captures",)),
    ("which keeps the last twenty", (orphan_processes.FAILURES_KEPT,), (20,)),
    ("follows it by six seconds a minute", (60 * clock.FOLLOWS,), (6,)),
    ("with a warning, 16 times at most", (restore_obstacles.MOST_DAMAGED,), (16,)),
    ("are replaced at once, every 10 s at most", (credential_renewal.REFUSED_AGAIN_SECONDS,), (10,)),
    ("to two days after the beginning at most", (LONGEST_RECORD_SECONDS,), (2 * 86_400,)),
    ("runs on 15 s after it without any order", (deadline_thaws.MARGIN_SECONDS,), (15,)),
    ("follow it once three answers agree", (server_time.CONFIRMED_BY,), (3,)),
    ("drop a data key that they have used within a minute", (data_keys.REMEMBERED_SECONDS,), (60,)),
    (
        "of more than 125,000 packs (8 TB)",
        (bounded_listing.MOST_SAMPLED, chunk_pipeline.PACK_BYTES),
        (125_000, 64 << 20),
    ),
    ("of more than 250,000 snapshots", (bounded_listing.MOST_LISTED,), (250_000,)),
    ("The first 32 reasons are counted by their names", (metrics.MOST_REASONS,), (32,)),
]


@pytest.mark.parametrize(("sentence", "has", "says"), SENTENCES, ids=[sentence for sentence, _, _ in SENTENCES])
def test_the_page_says_what_the_code_has(
    sentence: str, has: tuple[float | str, ...], says: tuple[float | str, ...]
) -> None:
    assert sentence in PAGE
    assert has == pytest.approx(says) if all(isinstance(one, float | int) for one in says) else has == says


def test_another_replica_leads_as_soon_as_the_page_says() -> None:
    """It may see the last renewal late by one look, and the end of the lease by another one."""
    assert LEASE.duration + 2 * LEASE.renew_every <= 20
