"""A pod with `tty: true` and `stdin: true` is preempted: kubectl attach and exec reach the same program afterwards."""

from __future__ import annotations

import asyncio
import os
import pty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

_READER = """
import os, signal, sys
assert os.isatty(0) and os.isatty(1)
lines = 0
signal.signal(signal.SIGUSR1, lambda *_: print('has read', lines, flush=True))
print('ready', flush=True)
for line in sys.stdin:
    print('got', lines, line.strip(), os.ttyname(0), flush=True)
    lines += 1
    if line.strip() == 'end':
        break
"""
_SIGNAL = ("python3", "-c", "import os, signal; os.kill(1, signal.SIGUSR1)")
"""To the container's own program, through `kubectl exec`."""


class _Attached:
    """The terminal of a person who has called `kubectl attach`."""

    def __init__(self, terminal: int, output: asyncio.StreamReader) -> None:
        self._terminal = terminal
        self._output = output

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    async def shows(self, text: str) -> None:
        """Wait until it shows this text, behind what was waited for before."""
        await asyncio.wait_for(self._output.readuntil(text.encode()), patient(60))


@asynccontextmanager
async def attached(namespace: Namespace, pod: str) -> AsyncIterator[_Attached]:
    """`kubectl attach` inside the block; it is ended before the pod is."""
    ours, theirs = pty.openpty()
    command = namespace.kubectl_command("attach", "--stdin", "--tty", "--quiet", pod)
    process = await asyncio.create_subprocess_exec(*map(str, command), stdin=theirs, stdout=theirs, stderr=theirs)
    output = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    shown, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), os.fdopen(os.dup(ours), "rb"))
    try:
        yield _Attached(ours, output)
    finally:
        with suppress(ProcessLookupError):  # it has ended with its pod
            process.kill()
        await process.wait()
        shown.close()
        os.close(theirs)
        os.close(ours)


@pytest.mark.any_shape
@pytest.mark.exhaustive  # tests/integration/cluster/node/restoring shows it each time, without a kubelet
async def test_attach_and_exec_reach_the_same_program_after_a_preemption(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    del installed_with_kueue
    job = indexed_job("reader", "bio", toolbox, "python3", "-c", _READER, cpu="600m")
    job["spec"]["template"]["spec"]["containers"][0] |= {"tty": True, "stdin": True}
    async with groups(namespace), Following.of(namespace, "reader") as reader:
        await namespace.apply(job)
        await asyncio.wait_for(reader.said(0, 1), patient(120))
        async with attached(namespace, reader.pods[0][0]) as terminal:
            terminal.type("one\n")
            await terminal.shows("one\r\ngot 0 one /dev/pts/0\r\n")
        await reclaim(namespace, toolbox)
        (pod,) = await namespace.pods("job-name=reader", within=120)
        name = pod["metadata"]["name"]
        assert name != reader.pods[0][0]
        async with attached(namespace, name) as terminal:
            terminal.type("two\n")
            await terminal.shows("two\r\ngot 1 two /dev/pts/0\r\n")
            await namespace.exec(name, *_SIGNAL)
            await terminal.shows("has read 2\r\n")
            terminal.type("end\n")
            await completed(namespace, "reader")
        await asyncio.wait_for(reader.read(), patient(60))
    before, after = reader.by_pod(0)
    assert before == ["ready", "one", "got 0 one /dev/pts/0"]
    assert after == ["two", "got 1 two /dev/pts/0", "has read 2", "end", "got 2 end /dev/pts/0"]
