"""The program that the pods run: it counts, guards its memory, and reports both by datagrams.

It shows whatever a preemption could do to it: work lost or done twice (its count), another replica's memory (who it
believes to be, beside what its pod says), damaged memory (a digest), two copies at once (the pod in which it runs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import container

ENOUGH: Final = "/tmp/enough"
_FACTS: Final = "/etc/podfacts"
_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
MEBIBYTES: Final = 8

_SOURCE: Final = f"""
import hashlib, os, socket, sys, time

def fact(name):
    with open("{_FACTS}/" + name) as file:
        return file.read() or "-"

collector = (sys.argv[1], int(sys.argv[2]))
job = sys.argv[3]
me = os.urandom(8).hex()
mine = fact("namespace") + " " + fact("index")
memory = bytearray(os.urandom({MEBIBYTES} << 20))
digest = hashlib.blake2b(memory).digest()
intact = True
number = 0
while not os.path.exists("{ENOUGH}"):
    if number % 10 == 0:
        intact = intact and hashlib.blake2b(memory).digest() == digest
        page = number * 4096 % len(memory)
        memory[page : page + 4096] = os.urandom(4096)
        digest = hashlib.blake2b(memory).digest()
    line = " ".join([job, me, mine, fact("namespace"), fact("index"), fact("uid"), str(number), str(int(intact))])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as words:
            words.sendto(line.encode(), collector)
    except OSError:
        pass  # a node without its network loses words, and no work
    number += 1
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Word:
    """One datagram.

    Attributes:
        at: when it came (epoch seconds).
        address: of the pod that sent it.
        job: the Job's name, from the program's arguments.
        name: what the program called itself when it began: memory alone keeps it.
        remembered: namespace and index that it began with.
        found: namespace and index of the pod in which it runs now.
        pod: that pod's uid.
        number: its count.
        is_intact: whether its memory is as it left it.
    """

    at: float
    address: str
    job: str
    name: str
    remembered: tuple[str, str]
    found: tuple[str, str]
    pod: str
    number: int
    is_intact: bool

    @classmethod
    def parse(cls, line: str) -> Word:
        """A line of the collector: when, from where, and what was sent."""
        at, address, job, name, namespace, index, is_namespace, is_index, pod, number, intact = line.split(" ")
        return cls(
            float(at), address, job, name, (namespace, index), (is_namespace, is_index), pod, int(number), intact == "1"
        )


def counting(image: str, job: str, collector: tuple[str, int], *, cpu: str, index_label: str = _INDEX_LABEL) -> Object:
    """Fields of a pod's spec: the container `main` that counts for a job, and the volume it reads its facts from."""
    host, port = collector
    main = container(
        image, "python3", "-c", _SOURCE, host, str(port), job,
        resources={"requests": {"cpu": cpu}},
        env=[{"name": "CEDANA_CHECKPOINT", "value": job}],
        volumeMounts=[{"name": "facts", "mountPath": _FACTS}],
    )  # fmt: skip
    paths = {
        "uid": "metadata.uid",
        "namespace": "metadata.namespace",
        "index": f"metadata.labels['{index_label}']",
    }
    items: list[dict[str, Any]] = [{"path": name, "fieldRef": {"fieldPath": path}} for name, path in paths.items()]
    return {"containers": [main], "volumes": [{"name": "facts", "downwardAPI": {"items": items}}]}
