"""Identity of a template's pods: an id that the user wrote into it, or one derived from its Job."""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched_kueue.objects import PodTemplate


def has_user_id(template: PodTemplate) -> bool:
    """Whether its pods have an id without us: the annotation or the variable, whatever its value."""
    return names.ID in annotations_of(template) or any(
        one.name == CHECKPOINT_VARIABLE for container in template.spec.containers for one in container.env or ()
    )


def user_chosen_checkpoint_id(template: PodTemplate) -> str | None:
    """Return the template's id; None if it has none, or the value comes from elsewhere (`valueFrom`)."""
    named = (
        one.value
        for container in template.spec.containers
        for one in container.env or ()
        if one.name == CHECKPOINT_VARIABLE and one.value
    )
    return next(named, None) or annotations_of(template).get(names.ID)


def annotations_of(template: PodTemplate) -> Mapping[str, str]:
    return template.metadata.annotations or {}
