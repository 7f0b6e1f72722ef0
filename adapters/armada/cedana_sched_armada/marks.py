"""Labels and annotations that Armada's executor writes on pods (Armada's internal/executor/domain).

A pod's name is `armada-<job id>-<pod number>`.
"""

from __future__ import annotations

from cedana_sched.kube.kept import kept

JOB_LABEL = kept("armada_job_id")
RUN_LABEL = kept("armada_job_run_id")
QUEUE_LABEL = kept("armada_queue_id")
JOB_SET_ANNOTATION = kept("armada_jobset_id")
