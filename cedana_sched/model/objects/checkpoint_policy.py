"""`CheckpointPolicy`: an admin's decisions for a queue or workload, and the namespaces whose pods may use them.

Any user who creates pods or queues may write a policy's name on them. Every lookup of a policy by name enforces
`allowedNamespaces` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import UserWritten, parse_stored_object
from cedana_sched.model.objects.label_selector import LabelSelector
from cedana_sched.model.policy import DEADLINES, CheckpointPolicy, OnCheckpointFailure, OnFinalDeletion, Retention

DEFAULT: Final = "default"
"""The policy that applies if no other is named; allowed in all namespaces."""

NamespaceName = Annotated[str, Field(max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class FromNamespaces(StrEnum):
    """`All` namespaces, or only those in `names`."""

    ALL = "All"
    NAMES = "Names"


class AllowedNamespaces(UserWritten):
    """Namespaces whose pods may have the policy, whether the pod or its queue names it.

    Absent: all namespaces; but `onCheckpointFailure: KeepRunning`, `imageMayChange` and `serviceAccountMayChange` then
    apply to none of them. The policy `default` ignores this field and applies to all.
    """

    from_: Annotated[FromNamespaces, Field(alias="from")]
    names: tuple[NamespaceName, ...] = ()

    @model_validator(mode="after")
    def _validate_names(self) -> Self:
        if self.names and self.from_ is not FromNamespaces.NAMES:
            raise ValueError(f"write 'from: {FromNamespaces.NAMES}', without which names say nothing")
        return self

    def is_namespace_allowed(self, namespace: str) -> bool:
        """Return whether pods of this namespace may have the policy."""
        return self.from_ is FromNamespaces.ALL or namespace in self.names


class SeccompProfile(UserWritten):
    """As `seccompProfile` of a pod's `securityContext`."""

    type: Literal["RuntimeDefault", "Localhost"]
    """The runtime's profile, or a file below the kubelet's folder `seccomp`."""
    localhost_profile: Annotated[
        str | None,
        Field(
            alias="localhostProfile",
            max_length=253,
            pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$",
        ),
    ] = None
    """Path of the profile, of type `Localhost`; every node must have it."""

    @model_validator(mode="after")
    def _validate_path(self) -> Self:
        if (self.type == "Localhost") != (self.localhost_profile is not None):
            raise ValueError("write localhostProfile with 'type: Localhost', and with no other")
        return self

    def __str__(self) -> str:
        return "/".join((self.type, *([self.localhost_profile] if self.localhost_profile else [])))


class PodDefaults(UserWritten):
    """What protected pods get at their creation where they leave it unset, so that they can be saved.

    No protection against a pod's author, who may set everything.
    """

    disable_libuv_io_uring: Annotated[bool, Field(alias="disableLibuvIoUring")] = True
    """Whether containers get the variable `UV_USE_IO_URING=0`, by which libuv, and so Node.js, does without io_uring,
    which cannot be saved."""
    seccomp_profile: Annotated[SeccompProfile | None, Field(alias="seccompProfile")] = None
    """The seccomp profile of pods that name none; absent: none is written. One that denies io_uring, as RuntimeDefault
    of containerd 2.0 and newer does, makes programs fall back to other calls. A pod that restores a snapshot gets it
    only if the saved pod had got the same."""


class CheckpointPolicySpec(CheckpointPolicy):
    """The fields of an inline policy, and the namespaces that may use it."""

    allowed_namespaces: Annotated[AllowedNamespaces | None, Field(alias="allowedNamespaces")] = None
    pods_may_choose: Annotated[bool | None, Field(alias="podsMayChoose")] = None
    """Whether pods of a queue that names this policy may name another one that their namespace may use. Absent: true
    only for the policy `default`, which is not an explicit choice."""
    pod_defaults: Annotated[PodDefaults, Field(alias="podDefaults")] = PodDefaults()
    namespace_selector: Annotated[LabelSelector | None, Field(alias="namespaceSelector")] = None
    """Labels of the namespaces whose pods `pod_selector` selects. Empty or absent: all that may use the policy."""
    pod_selector: Annotated[LabelSelector | None, Field(alias="podSelector")] = None
    """Labels of pods that the policy opts in at their creation, by the adapter `kubernetes` with `podSelectors`. Empty:
    all pods, and `namespace_selector` is required; absent: none."""

    @field_validator("pod_selector")
    @classmethod
    def _check_namespaces_are_named(cls, selector: LabelSelector | None, info: ValidationInfo) -> LabelSelector | None:
        if selector is not None and selector.is_empty and info.data.get("namespace_selector") is None:
            raise ValueError("it selects all pods: name namespaces, or write 'namespaceSelector: {}', too, for all")
        return selector


_WHERE: Final = f"metadata.annotations[{names.POLICY}]"
_GAINS: Final[dict[str, object]] = {
    "on_checkpoint_failure": OnCheckpointFailure.KEEP_RUNNING,
    "image_may_change": True,
    "service_account_may_change": True,
}
"""Fields that let a pod avoid eviction, or restore with another image or account. Deadlines have their own cap."""


class EffectivePolicy(NamedTuple):
    """The policy effective for a pod. `withheld`: fields without effect, as written in YAML."""

    policy: CheckpointPolicy
    withheld: tuple[str, ...] = ()


def read_spec(name: str, spec: object) -> CheckpointPolicySpec:
    """Parse a policy from the API server.

    Raises:
        UsageError: a field has an invalid value.
    """
    try:
        return parse_stored_object(CheckpointPolicySpec, spec)
    except ValidationError as error:
        remedy = f"correct it: kubectl edit checkpointpolicy {name}"
        raise UsageError(_WHERE, name, "is a policy that cannot be read", remedy=remedy) from error


def chosen_policy_name(annotations: Mapping[str, str], spec_of: Callable[[str], CheckpointPolicySpec]) -> str | None:
    """Return the policy name for a new pod: its queue's, unless that policy lets pods choose; None if none is named.

    Args:
        annotations: the pod's annotations at creation.
        spec_of: returns the policy of a name; its errors propagate.
    """
    own, of_queue = annotations.get(names.POLICY) or None, annotations.get(names.QUEUE_POLICY) or None
    if own and of_queue and own != of_queue and not _lets_choose(of_queue, spec_of(of_queue)):
        return of_queue
    return own or of_queue


def _lets_choose(name: str, spec: CheckpointPolicySpec) -> bool:
    return name == DEFAULT if spec.pods_may_choose is None else spec.pods_may_choose


def restrict_policy(policy: CheckpointPolicy, other: CheckpointPolicy) -> CheckpointPolicy:
    """Return the policy restricted to what the other one allows as well."""
    kept, limit = policy.retention, other.retention
    intervals = [one.interval_seconds for one in (policy, other) if one.interval_seconds is not None]
    saves_last = {policy.on_final_deletion, other.on_final_deletion} == {OnFinalDeletion.SAVE}
    ages = [age for age in (kept.max_age_seconds, limit.max_age_seconds) if age is not None]
    return policy.model_copy(
        update={
            **{field: getattr(other, field) for field, gain in _GAINS.items() if getattr(policy, field) == gain},
            **{field: min(getattr(policy, field), getattr(other, field)) for field in DEADLINES},
            "on_final_deletion": OnFinalDeletion.SAVE if saves_last else OnFinalDeletion.DISCARD,
            "interval_seconds": max(intervals) if len(intervals) == 2 else None,
            "max_frozen_percent": min(policy.max_frozen_percent, other.max_frozen_percent),
            "retention": Retention(
                keep_last=min(kept.keep_last, limit.keep_last), max_age_seconds=min(ages, default=None)
            ),
        }
    )


def may_namespace_use(name: str, spec: CheckpointPolicySpec, namespace: str) -> bool:
    """Return whether pods of a namespace may have the policy."""
    allowed = spec.allowed_namespaces
    return allowed is None or name == DEFAULT or allowed.is_namespace_allowed(namespace)


def effective_policy(name: str, spec: CheckpointPolicySpec, namespace: str) -> EffectivePolicy:
    """Return the effective policy for pods of a namespace.

    Raises:
        UsageError: the policy does not allow the namespace.
    """
    if not may_namespace_use(name, spec, namespace):
        remedy = "name another one, or have an admin add the namespace to its spec.allowedNamespaces"
        raise UsageError(_WHERE, name, f"is not for pods of namespace {namespace}", remedy=remedy)
    without = _ineffective_field_names(name, spec)
    plain = {field: getattr(spec, field) for field in CheckpointPolicy.model_fields if field not in without}
    return EffectivePolicy(CheckpointPolicy(**plain), _yaml_field_names(without))


def ineffective_fields(name: str, spec: CheckpointPolicySpec) -> tuple[str, ...]:
    """Return the fields without effect, because the policy has no allowedNamespaces; as written in YAML."""
    return _yaml_field_names(_ineffective_field_names(name, spec))


def _yaml_field_names(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"spec.{CheckpointPolicy.model_fields[field].alias}" for field in fields)


def _ineffective_field_names(name: str, spec: CheckpointPolicySpec) -> tuple[str, ...]:
    if name == DEFAULT or spec.allowed_namespaces is not None:
        return ()
    return tuple(field for field, gain in _GAINS.items() if getattr(spec, field) == gain)
