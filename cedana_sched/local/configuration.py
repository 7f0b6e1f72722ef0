"""The engine's configuration: capacity, groups, fair sharing. A TOML file in Kueue's terms.

    stallSeconds = 30               # above all tables; a dump or restore without progress for this long is aborted

    [capacity]                      # default: the machine's capacity
    cpu = 4
    memory = "8Gi"

    [fairSharing]                   # present: on; absent: reclaim by quota alone
    preemptionStrategies = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]

    [[groups]]                      # Kueue: a ClusterQueue; all of them share one cohort
    name = "bio"
    nominalQuota = {cpu = 2, memory = "4Gi"}
    borrowingLimit = {cpu = 1}      # an omitted resource has no limit
    lendingLimit = {memory = "1Gi"}
    queueingStrategy = "BestEffortFIFO"
    optIn = true                    # every job has a checkpoint id, by default its name
    namespace = "default"
    preemption = {reclaimWithinCohort = "Any", withinClusterQueue = "LowerPriority"}
    fairSharing = {weight = 2}
    checkpointPolicy = {deadlineSeconds = 60}

Defaults are Kueue's: no preemption unless configured. Nominal quota is guaranteed, so nominal quotas whose sum
exceeds the capacity are rejected. A group of weight 0 may borrow, and its borrowed quota is reclaimed first.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from cedana_sched.local.quantities import parse_cpus, parse_memory
from cedana_sched.local.scheduler.resources import Limits, Resource, Resources, in_words
from cedana_sched.local.scheduler.scheduling_types import (
    Cohort,
    Group,
    PreemptionPolicy,
    QueueingStrategy,
    ShareStrategy,
)
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import validate_name
from cedana_sched.model.policy import CheckpointPolicy, StallSeconds
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS


def _validation_error(problem: str, remedy: str, **part: object) -> PydanticCustomError:
    """Return an error that pydantic reports with its location; `field` and `value` name a part of the location."""
    return PydanticCustomError("refused", "{problem}", {"problem": problem, "remedy": remedy, **part})


def _validator_of(read: Any) -> Any:
    """Return a validator that wraps a parser which raises `UsageError`."""

    def validate(value: Any) -> Any:
        try:
            return read(value)
        except UsageError as error:
            problem = error.message.removeprefix(f"{error.field}: {error.value!r} ")
            raise _validation_error(problem, error.remedy) from error

    return BeforeValidator(validate)


Cpus = Annotated[int, _validator_of(lambda value: parse_cpus("cpu", value))]
Memory = Annotated[int, _validator_of(lambda value: parse_memory("memory", value))]
Name = Annotated[str, _validator_of(lambda value: validate_name("name", str(value)))]


class _ConfigurationTable(BaseModel):
    """Base of the file's tables: camelCase names; unknown fields are rejected."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class Quota(_ConfigurationTable):
    """An amount of every resource."""

    cpu: Cpus
    memory: Memory

    @property
    def resources(self) -> Resources:
        return Resources(self.cpu, self.memory)


class QuotaLimit(_ConfigurationTable):
    """An upper bound of each resource; None is no bound."""

    cpu: Cpus | None = None
    memory: Memory | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.cpu, self.memory)


class BorrowWithinCohort(_ConfigurationTable):
    """Whether a job whose group borrows may preempt jobs of other groups, and up to which priority."""

    policy: Literal["Never", "LowerPriority"] = "Never"
    max_priority_threshold: int | None = None


class PreemptionRules(_ConfigurationTable):
    """Kueue's `ClusterQueue.spec.preemption`."""

    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Never"
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()

    @model_validator(mode="after")
    def _check_borrowing_needs_reclaim(self) -> Self:
        if self.reclaim_within_cohort == "Never" and self.borrow_within_cohort.policy != "Never":
            raise _validation_error(
                "has no effect while reclaimWithinCohort is Never",
                "change one of them",
                field="borrowWithinCohort",
                value=self.borrow_within_cohort.policy,
            )
        return self


class GroupSharing(_ConfigurationTable):
    """Kueue's `ClusterQueue.spec.fairSharing`."""

    weight: Annotated[float, Field(ge=0, le=1_000_000)] = 1.0


class GroupConfiguration(_ConfigurationTable):
    """One group (Kueue: a ClusterQueue)."""

    name: Name
    nominal_quota: Quota
    borrowing_limit: QuotaLimit = QuotaLimit()
    lending_limit: QuotaLimit = QuotaLimit()
    preemption: PreemptionRules = PreemptionRules()
    fair_sharing: GroupSharing = GroupSharing()
    queueing_strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    opt_in: bool = False
    namespace: Name = "default"
    checkpoint_policy: CheckpointPolicy = CheckpointPolicy()

    @model_validator(mode="after")
    def _check_lending_limit(self) -> Self:
        for resource in Resource:
            limit, nominal = self.lending_limit.limits[resource], self.nominal_quota.resources[resource]
            if limit is not None and limit > nominal:
                raise _validation_error(
                    f"is above nominalQuota.{resource}",
                    "lower it, or leave it out",
                    field=f"lendingLimit.{resource}",
                    value=in_words(resource, limit),
                )
        return self

    def as_group(self) -> Group:
        """Return the group as input of the scheduler."""
        borrow = self.preemption.borrow_within_cohort
        return Group(
            name=self.name,
            nominal=self.nominal_quota.resources,
            borrowing_limit=self.borrowing_limit.limits,
            lending_limit=self.lending_limit.limits,
            weight=self.fair_sharing.weight,
            within_group=PreemptionPolicy(self.preemption.within_cluster_queue),
            reclaim=PreemptionPolicy(self.preemption.reclaim_within_cohort),
            borrow_while_preempting=borrow.policy == "LowerPriority",
            max_priority_threshold=borrow.max_priority_threshold,
            queueing=self.queueing_strategy,
        )


_STRATEGIES = (
    (ShareStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,),
    (ShareStrategy.LESS_THAN_INITIAL_SHARE,),
    (ShareStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE, ShareStrategy.LESS_THAN_INITIAL_SHARE),
)


class FairSharing(_ConfigurationTable):
    """Kueue's `Configuration.fairSharing`."""

    preemption_strategies: tuple[ShareStrategy, ...] = _STRATEGIES[-1]

    @model_validator(mode="after")
    def _check_strategy_order(self) -> Self:
        if self.preemption_strategies not in _STRATEGIES:
            raise _validation_error(
                "are in no order that has a meaning",
                "write one of them, or LessThanOrEqualToFinalShare before LessThanInitialShare",
                field="preemptionStrategies",
                value=[strategy.value for strategy in self.preemption_strategies],
            )
        return self


class Configuration(_ConfigurationTable):
    """The whole file."""

    capacity: Quota
    groups: Annotated[tuple[GroupConfiguration, ...], Field(min_length=1)]
    fair_sharing: FairSharing | None = None
    stall_seconds: StallSeconds = STALL_SECONDS
    """Seconds without progress after which a dump or restore is aborted; a store may be silent for twice as long."""

    @model_validator(mode="after")
    def _check_groups_and_capacity(self) -> Self:
        names = [group.name for group in self.groups]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise _validation_error(
                "is the name of two groups", "give each its own", field="groups.name", value=twice[0]
            )
        for resource in Resource:
            promised = sum(group.nominal_quota.resources[resource] for group in self.groups)
            there = self.capacity.resources[resource]
            if promised > there:
                raise _validation_error(
                    f"is what all groups are promised, and the capacity is {in_words(resource, there)}",
                    f"lower the quotas, or set capacity.{resource}",
                    field=f"groups.nominalQuota.{resource}",
                    value=in_words(resource, promised),
                )
        if self.fair_sharing and any(g.preemption.borrow_within_cohort.policy != "Never" for g in self.groups):
            raise _validation_error(
                "does not go with fairSharing",
                "leave one of them out, as in Kueue",
                field="groups.preemption.borrowWithinCohort",
                value="LowerPriority",
            )
        return self

    @property
    def cohort(self) -> Cohort:
        strategies = self.fair_sharing.preemption_strategies if self.fair_sharing else ()
        return Cohort({group.name: group.as_group() for group in self.groups}, strategies)

    def group(self, name: str) -> GroupConfiguration:
        """Return the group called `name`.

        Raises:
            UsageError: the configuration has no such group.
        """
        for group in self.groups:
            if group.name == name:
                return group
        choice = ", ".join(group.name for group in self.groups)
        raise UsageError("group", name, "is no group of this engine", remedy=f"its groups are: {choice}")

    @classmethod
    def single_group(cls, machine: Resources, name: str = "default") -> Configuration:
        """Return the configuration without a file: one group that may use the whole machine."""
        quota = Quota(cpu=machine.cpu / 1000, memory=machine.memory)  # type: ignore[arg-type]  # the validator parses a float of cores
        rules = PreemptionRules(within_cluster_queue="LowerPriority")
        return cls(capacity=quota, groups=(GroupConfiguration(name=name, nominal_quota=quota, preemption=rules),))

    @classmethod
    def parse(cls, text: str, machine: Resources, source: str = "configuration") -> Configuration:
        """Parse TOML; `machine` is the default capacity.

        Raises:
            UsageError: the text is invalid; the error has the field, the value and a remedy.
        """
        try:
            written: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(source, str(error), "is not TOML", remedy="correct the file at that line") from error
        capacity = written.setdefault("capacity", {})
        if isinstance(capacity, dict):
            capacity.setdefault("cpu", machine.cpu / 1000)
            capacity.setdefault("memory", machine.memory)
        try:
            return cls.model_validate(written)
        except ValidationError as error:
            raise _usage_error(error, source) from error

    @classmethod
    def read(cls, path: Path, machine: Resources) -> Configuration:
        """Read a TOML file.

        Raises:
            UsageError: the file cannot be read, or is invalid.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError("config", str(path), f"cannot be read: {error}", remedy="name a readable file") from error
        return cls.parse(text, machine, str(path))


def _usage_error(error: ValidationError, source: str) -> UsageError:
    """Return the first validation error, with field, value and remedy; the next attempt reports the next error."""
    problem = error.errors()[0]
    context = problem.get("ctx", {})
    place = [str(part) for part in problem["loc"]]
    value = context.get("value", problem["input"])
    if problem["type"] == "missing":
        return UsageError(".".join(place[:-1]) or source, place[-1], "is missing", remedy="add it")
    if problem["type"] == "extra_forbidden":
        field = ".".join(place[:-1]) or source
        return UsageError(field, place[-1], "is no field of it", remedy="correct its name, or remove it")
    if "field" in context:
        place.append(context["field"])
    field = ".".join(place) or source
    message = str(problem["msg"])
    if problem["type"] == "refused":
        return UsageError(field, value, message, remedy=context["remedy"])
    remedy = f"{message[:1].lower()}{message[1:]}"
    return UsageError(field, value, "cannot be used", remedy=remedy)


def machine_capacity(cpus: int, memory_bytes: int) -> Resources:
    """Return the allocatable capacity of a machine: all cores, and 15/16 of its memory."""
    return Resources(cpus * 1000, math.floor(memory_bytes * 15 / 16))
