"""The providers whose notices are read: one entry each.

A further one needs a module of its own beside `aws_notices`, an entry here, and its name in `InterruptionSource`, in
`InterruptionsConfiguration.provider`, in the doctor's `PROVIDERS_BY_SCHEME`, in the chart's values and their schema,
and in the table of docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from cedana_sched.cluster.node.interruptions.aws_notices import aws_watches, request_token
from cedana_sched.cluster.node.interruptions.azure_notices import azure_watches, read_machine
from cedana_sched.cluster.node.interruptions.gcp_notices import gcp_watches, prove_gcp
from cedana_sched.cluster.node.interruptions.metadata_server import MetadataServer
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch, Now
from cedana_sched.model.objects.node_interruption import InterruptionSource

HasPods = Callable[[], Awaitable[bool]]
"""Returns whether pods run on the node that end with it."""


class Provider(msgspec.Struct, frozen=True):
    """How one provider is detected and read.

    `prove` raises MetadataError where the server is none of the provider's. `watches` returns what to read of a node.
    """

    prove: Callable[[MetadataServer], Awaitable[object]]
    watches: Callable[[MetadataServer, Now, HasPods], tuple[NoticeWatch, ...]]


PROVIDERS: Final[Mapping[InterruptionSource, Provider]] = {
    InterruptionSource.AWS: Provider(request_token, lambda server, now, _: aws_watches(server, now)),
    InterruptionSource.GCP: Provider(prove_gcp, lambda server, now, _: gcp_watches(server, now)),
    InterruptionSource.AZURE: Provider(read_machine, azure_watches),
}
"""In the order of detection."""
