"""`CheckpointPolicy`: what an admin decides for a queue or a workload, and for the pods of which namespaces it counts.

Whoever makes pods may write a policy's name on them, or in a queue. What keeps him to those that he may have is read
here, wherever a policy is looked up by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import Written, read_kept
from cedana_sched.model.policy import DEADLINES, CheckpointPolicy, OnCheckpointFailure, Retention

DEFAULT: Final = "default"
"""The policy that counts where no other is named, and so for all."""

NamespaceName = Annotated[str, Field(max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class FromNamespaces(StrEnum):
    """`All` namespaces, or those in `names` alone."""

    ALL = "All"
    NAMES = "Names"


class AllowedNamespaces(Written):
    """Whose pods may have the policy, whether they name it or their queue does.

    Absent: those of all namespaces; but `onCheckpointFailure: KeepRunning`, `imageMayChange` and
    `serviceAccountMayChange` count for none of them. The policy `default` is for all, whatever stands here.
    """

    from_: Annotated[FromNamespaces, Field(alias="from")]
    names: tuple[NamespaceName, ...] = ()

    @model_validator(mode="after")
    def _names_count(self) -> Self:
        if self.names and self.from_ is not FromNamespaces.NAMES:
            raise ValueError(f"write 'from: {FromNamespaces.NAMES}', without which names say nothing")
        return self

    def has(self, namespace: str) -> bool:
        """Whether it allows this one."""
        return self.from_ is FromNamespaces.ALL or namespace in self.names


class CheckpointPolicySpec(CheckpointPolicy):
    """The same fields as everywhere else a policy is written, and whose pods it is for."""

    allowed_namespaces: Annotated[AllowedNamespaces | None, Field(alias="allowedNamespaces")] = None
    pods_may_choose: Annotated[bool | None, Field(alias="podsMayChoose")] = None
    """Whether pods of a queue that names this policy may name another one, of those that their namespace may have.
    Absent: they may where it is `default`, which nobody has chosen."""


_WHERE: Final = f"metadata.annotations[{names.POLICY}]"
_GAINS: Final[dict[str, object]] = {
    "on_checkpoint_failure": OnCheckpointFailure.KEEP_RUNNING,
    "image_may_change": True,
    "service_account_may_change": True,
}
"""By which a pod stays where it must go, or continues as what it was not. Deadlines have a cap of their own."""


class Counting(NamedTuple):
    """A policy as it counts for a pod. `withheld`: its fields, as people write them, that do not."""

    policy: CheckpointPolicy
    withheld: tuple[str, ...] = ()


def read_spec(name: str, spec: object) -> CheckpointPolicySpec:
    """A policy as the API server keeps it.

    Raises:
        UsageError: a field cannot be what it is.
    """
    try:
        return read_kept(CheckpointPolicySpec, spec)
    except ValidationError as error:
        remedy = f"correct it: kubectl edit checkpointpolicy {name}"
        raise UsageError(_WHERE, name, "is a policy that cannot be read", remedy=remedy) from error


def chosen(annotations: Mapping[str, str], spec_of: Callable[[str], CheckpointPolicySpec]) -> str | None:
    """The name of the policy that a new pod has: its queue's, unless that one lets pods choose; None: none is named.

    Args:
        annotations: the pod's, as it is created.
        spec_of: what the policy of a name says; what it raises is raised here.
    """
    own, of_queue = annotations.get(names.POLICY) or None, annotations.get(names.QUEUE_POLICY) or None
    if own and of_queue and own != of_queue and not _lets_choose(of_queue, spec_of(of_queue)):
        return of_queue
    return own or of_queue


def _lets_choose(name: str, spec: CheckpointPolicySpec) -> bool:
    return name == DEFAULT if spec.pods_may_choose is None else spec.pods_may_choose


def within(policy: CheckpointPolicy, other: CheckpointPolicy) -> CheckpointPolicy:
    """The policy without what the other one does not allow as well."""
    kept, limit = policy.retention, other.retention
    ages = [age for age in (kept.max_age_seconds, limit.max_age_seconds) if age is not None]
    return policy.model_copy(
        update={
            **{field: getattr(other, field) for field, gain in _GAINS.items() if getattr(policy, field) == gain},
            **{field: min(getattr(policy, field), getattr(other, field)) for field in DEADLINES},
            "retention": Retention(
                keep_last=min(kept.keep_last, limit.keep_last), max_age_seconds=min(ages, default=None)
            ),
        }
    )


def counting(name: str, spec: CheckpointPolicySpec, namespace: str) -> Counting:
    """What the policy of that name says for pods of a namespace.

    Raises:
        UsageError: it is not for them.
    """
    allowed = spec.allowed_namespaces
    if allowed is not None and name != DEFAULT and not allowed.has(namespace):
        remedy = "name another one, or have an admin add the namespace to its spec.allowedNamespaces"
        raise UsageError(_WHERE, name, f"is not for pods of namespace {namespace}", remedy=remedy)
    without = _without(name, spec)
    plain = {field: getattr(spec, field) for field in CheckpointPolicy.model_fields if field not in without}
    return Counting(CheckpointPolicy(**plain), _as_written(without))


def withheld(name: str, spec: CheckpointPolicySpec) -> tuple[str, ...]:
    """Fields that count for nobody, because the policy does not say for whom; as people write them."""
    return _as_written(_without(name, spec))


def _as_written(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"spec.{CheckpointPolicy.model_fields[field].alias}" for field in fields)


def _without(name: str, spec: CheckpointPolicySpec) -> tuple[str, ...]:
    if name == DEFAULT or spec.allowed_namespaces is not None:
        return ()
    return tuple(field for field, gain in _GAINS.items() if getattr(spec, field) == gain)
