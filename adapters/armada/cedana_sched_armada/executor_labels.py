"""Labels and annotations that Armada's executor writes on pods (Armada's internal/executor/domain).

A pod's name is `armada-<job id>-<pod number>`.
"""

from __future__ import annotations

from cedana_sched.kube.cached_metadata_keys import register_cached_key

JOB_LABEL = register_cached_key("armada_job_id")
RUN_LABEL = register_cached_key("armada_job_run_id")
QUEUE_LABEL = register_cached_key("armada_queue_id")
JOB_SET_ANNOTATION = register_cached_key("armada_jobset_id")
