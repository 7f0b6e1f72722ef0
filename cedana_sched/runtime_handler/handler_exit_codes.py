"""Exit statuses of the runtime handler's Python part, which determine the launcher's next step; 0: restored.

Any other status is a crash: the launcher retries, and then applies the plan's fallback, unless a container of the pod
has been restored, or may have been.
"""

from __future__ import annotations

PASS = 100
"""Pass this call to runc, unchanged: it does not concern us, or the container starts cold."""
FAILED = 101
"""The call failed, and runc's log has the reason, for the shim to report."""
