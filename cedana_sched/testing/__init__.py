"""An API server in memory, for tests of adapters and of whatever else reads and writes Kubernetes' objects.

`api` is the client's face: requests as `kube.client.Api` makes them. Behind it `store` keeps objects as an API server
does, `watches` publishes their changes, and `traffic` counts requests and makes them fail.
"""

from __future__ import annotations

from cedana_sched.testing.api import FakeApi
from cedana_sched.testing.store import Key
from cedana_sched.testing.traffic import Traffic, Write

__all__ = ["FakeApi", "Key", "Traffic", "Write"]
