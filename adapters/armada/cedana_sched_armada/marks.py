"""What Armada's executor writes on pods (Armada's internal/executor/domain).

A pod is called `armada-<job id>-<pod number>`.
"""

from __future__ import annotations

JOB_LABEL = "armada_job_id"
RUN_LABEL = "armada_job_run_id"
QUEUE_LABEL = "armada_queue_id"
JOB_SET_ANNOTATION = "armada_jobset_id"
