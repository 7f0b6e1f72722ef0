"""When a ValidatingAdmissionPolicy is in force: API servers learn of one up to a second or two after it was written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.cluster.errors import ClusterError


async def wait_until_refused(attempt: Callable[[], Awaitable[object]], message: str, *, tries: int = 200) -> None:
    """Try what a policy forbids, without effect, until it is refused: nothing that can be watched tells of it.

    Args:
        attempt: a dry run with kubectl.
        message: in the policy's answer; other refusals do not count.
        tries: about a tenth of a second each.

    Raises:
        ClusterError: it was never refused.
    """
    for _ in range(tries):
        try:
            await attempt()
        except ClusterError as error:
            if message in str(error):
                return
    raise ClusterError(f"nothing is refused with {message!r}", remedy="see whether the policy has its binding")
