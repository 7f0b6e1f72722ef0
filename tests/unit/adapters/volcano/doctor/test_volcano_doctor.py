"""What the doctor says of configurations that were tried on a real Volcano."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.component.callers import new_secret, secret_segment_of
from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched_volcano.doctor.examine import Installation, examine

HOST = "cedana-sched-volcano-extender.cedana-system"
URL = f"http://{HOST}:8713"
SEGMENT = secret_segment_of(new_secret(), "/volcano")
PREFIX = f"{URL}/{SEGMENT}"

STOCK = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""

EXTENDER = f"""
  - name: extender
    arguments:
      extender.urlPrefix: {PREFIX}
      extender.httpTimeout: 500ms
      extender.preemptableVerb: preemptable
      extender.reclaimableVerb: reclaimable
"""

ONE_TIER = (
    """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - {name: priority}
  - {name: gang, enablePreemptable: false, enableReclaimable: false}
  - {name: conformance}
  - {name: drf, enablePreemptable: false}
  - {name: predicates}
  - {name: proportion}
  - {name: nodeorder}
"""
    + EXTENDER
)

RECLAIMING = STOCK.replace("backfill", "backfill, reclaim").replace("  - name: overcommit\n", "")


def found(
    text: str,
    *queues: dict[str, Any],
    status_hold: bool = False,
    pre_stop: bool = True,
    extender_url: str | None = URL,
) -> list[Finding]:
    data = {"volcano-scheduler.conf": text, "notes.txt": "x"}
    urls = () if extender_url is None else (extender_url,)
    return examine(data, queues, Installation(status_hold, pre_stop, urls))


def bad(findings: list[Finding]) -> list[str]:
    for finding in findings:
        assert (finding.level is Level.OK) == (not finding.remedy), finding
    return [f"{finding.level} {finding.message}" for finding in findings if finding.level is not Level.OK]


def one(findings: list[Finding], part: str) -> Finding:
    (finding,) = [finding for finding in findings if part in finding.message]
    return finding


def test_one_tier_with_the_extender_last_is_well() -> None:
    findings = found(ONE_TIER)
    assert bad(findings) == []
    assert findings[-1].message == "evictions are held by the extender (preempt and reclaim), preStop"


def test_stock_volcano_preempts_nobody() -> None:
    findings = found(STOCK, status_hold=True, extender_url=None)
    lacking = [said for said in bad(findings) if "actions lack" in said]
    assert len(lacking) == 2
    assert "raise its overcommit-factor" in one(findings, "overcommit plugin").remedy
    assert one(findings, "held by").message == "evictions are held by refused writes of pods/status, preStop"


def test_stock_tiers_do_not_ask_what_a_queue_deserves_and_break_up_gangs() -> None:
    findings = found(RECLAIMING, status_hold=True, extender_url=None)
    assert "proportion is not called" in one(findings, "an earlier tier decides 'reclaim'").message
    assert one(findings, "passed on to the next tier").remedy.startswith("set enableReclaimable: false on gang")


def test_in_one_tier_gang_protects_whole_gangs() -> None:
    findings = found(ONE_TIER.replace(", enableReclaimable: false", ""))
    (said,) = bad(findings)
    assert "'reclaim' never takes jobs whose minAvailable is all of their pods" in said


@pytest.mark.parametrize(("status_hold", "level"), [(True, Level.WARN), (False, Level.FAIL)])
def test_an_extender_behind_another_tier_is_not_asked(status_hold: bool, level: Level) -> None:
    findings = found(RECLAIMING + EXTENDER, status_hold=status_hold)
    finding = one(findings, "'reclaim': an earlier tier (gang, conformance) decides without it")
    assert (finding.level, finding.remedy) == (level, "put all plugins into one tier, the extender last")
    assert "extender (" not in findings[-1].message


def test_an_extender_before_another_tier_is_overruled() -> None:
    text = ONE_TIER + "- plugins:\n  - name: capacity\n"
    assert one(found(text), "'reclaim': if it allows no victim, a later tier (capacity) decides").level is Level.FAIL
    assert one(found(text), "held by").message.startswith("evictions are held by the extender (preempt), preStop")
    harmless = (
        ONE_TIER
        + "- plugins:\n  - name: binpack\n  - {name: pdb, enablePreemptable: false, enableReclaimable: false}\n"
    )
    assert bad(found(harmless)) == []


def test_plugins_behind_the_extender_begin_anew() -> None:
    text = ONE_TIER + "  - name: pdb\n"
    assert len([said for said in bad(found(text)) if "plugins behind it (pdb) start over" in said]) == 2


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        (f"extender.urlPrefix: {PREFIX}", "extender.httpTimeout: 500ms", "extender.urlPrefix is not set"),
        (URL, "http://elsewhere.example:1", "extender.urlPrefix is at http://elsewhere.example:1"),
        (PREFIX, "http://[x", "extender.urlPrefix is no URL"),
        (PREFIX, URL, "lacks the secret part of our address"),
        (PREFIX, f"{URL}/", "lacks the secret part of our address"),
        (PREFIX, PREFIX[:-1], "lacks the secret part of our address"),
        (PREFIX, f"{PREFIX}/x", "lacks the secret part of our address"),
        (URL, URL.replace("http:", "https:"), "trusts only the authorities of its own image"),
        ("extender.reclaimableVerb: reclaimable", "", "extender.reclaimableVerb is not set"),
        ("Verb: reclaimable", "Verb: reclaim", "extender.reclaimableVerb is 'reclaim', where nothing answers"),
        ("  - name: extender", "  - name: extender\n    enableReclaimable: false", "enableReclaimable of the extender"),
        ("500ms", "5s", "a slow extender stops the whole scheduler"),
        ("500ms", "20ms", "calls that take longer"),
        ("500ms", "500", "is no duration: Volcano waits 1s"),
        ("500ms", "half a second", "is no duration: Volcano waits 1s"),
        ("extender.httpTimeout: 500ms", "", "extender.httpTimeout is not set"),
        ("500ms", "500ms\n      extender.ignorable: true", "does not let preemptions proceed when it is down"),
        ("500ms", "500ms\n      extender.managedResources: [gpu]", "only for jobs that request"),
        ("500ms", "500ms\n      extender.predicateVerb: predicate", "nothing is scheduled"),
        ('reclaim"', 'reclaim, gangreclaim"', "action 'gangreclaim' evicts without calling it"),
        ('reclaim"', 'reclaim, evict"', "action 'evict' is unknown to us"),
        ("{name: proportion}", "{name: nodeorder}", "neither proportion nor capacity"),
        ("{name: proportion}", "{name: proportion}\n  - {name: capacity}", "both say what a queue deserves"),
        ("{name: drf, enablePreemptable: false}", "{name: drf, enableHierarchy: true}", "Volcano refuses the file"),
    ],
)
def test_every_trap_has_its_sentence_and_its_remedy(before: str, after: str, part: str) -> None:
    assert before in ONE_TIER
    assert any(part in said for said in bad(found(ONE_TIER.replace(before, after))))


def test_the_secret_part_of_the_address_is_not_repeated() -> None:
    for text in (ONE_TIER, ONE_TIER.replace(HOST, "elsewhere"), ONE_TIER.replace(SEGMENT, f"{SEGMENT}/x")):
        assert not any(SEGMENT in f"{finding.message} {finding.remedy}" for finding in found(text))
    assert bad(found(ONE_TIER.replace(SEGMENT, f"{SEGMENT}/"))) == []


def test_an_extender_that_volcano_does_not_ask() -> None:
    text = ONE_TIER.replace(EXTENDER, "")
    assert "its configuration lacks the plugin" in bad(found(text))[-1]
    assert "its victims are killed at that time" in bad(found(text, extender_url=None))[-1]
    assert bad(found(text, extender_url=None, status_hold=True)) == []
    assert bad(found(text, extender_url=None, pre_stop=False))[-1].startswith("fail nothing holds evictions")


def test_queues_that_cannot_give_or_claim() -> None:
    bio = {"metadata": {"name": "bio"}, "spec": {"reclaimable": False, "deserved": {"cpu": 2}}}
    ml = {"metadata": {"name": "ml"}, "spec": {}, "status": {"state": "Closed"}}
    root = {"metadata": {"name": "root"}}
    by_capacity = ONE_TIER.replace("proportion", "capacity")
    says = [said.split(":")[0] for said in bad(found(by_capacity, bio, ml, root))]
    assert says == [
        "warn queue bio never gives back what it borrows",
        "warn queue ml has no spec.deserved, by which the capacity plugin would claim for it",
        "warn queue ml is Closed",
    ]
    assert not any("deserved" in said for said in bad(found(ONE_TIER, ml)))
    assert bad(found(ONE_TIER.replace(", reclaim", ""), bio)) == [
        "warn actions lack 'reclaim': no queue gets back what others borrow of its share"
    ]


@pytest.mark.parametrize(
    "text", ["a: [", "actions: 5", "- x", "", "actions: x\ntiers: [1]", "actions: x\ntiers: [{plugins: [{}]}]"]
)
def test_what_cannot_be_read(text: str) -> None:
    (said,) = bad(found(text))
    assert said.startswith("fail volcano-scheduler.conf cannot be read, and Volcano keeps the previous one")


def test_no_configuration_at_all() -> None:
    (finding,) = examine({}, [], Installation(status_hold=True))
    assert "Volcano runs as it is built, without preemption" in finding.message
