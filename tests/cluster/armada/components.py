"""How each of Armada's programs is started, and what it is told beyond its own defaults.

Everybody may do everything, and nothing waits long: a job is leased, and a preemption decided, within a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.cluster.armada import stores
from tests.cluster.machine.services import Service

TOOL = "armada"
HOME = "/opt/armada"
"""The folder that the programs start in: they read their defaults from `config` in it."""
SERVER_PORT = 50051
SCHEDULER_PORT = 50052

COMPONENTS = ("server", "scheduler", "scheduleringester", "eventingester", "lookoutingester")

_CONFIGURATION = "/etc/armada"
_EVERYBODY = ["everyone"]
PERMISSIONS = (
    "submit_any_jobs",
    "cancel_any_jobs",
    "reprioritize_any_jobs",
    "preempt_any_jobs",
    "create_queue",
    "delete_queue",
    "watch_all_events",
    "update_executor_settings",
)
_PULSAR = {
    "URL": f"pulsar://localhost:{stores.PULSAR_PORT}",
    "restURL": f"http://localhost:{stores.PULSAR_WEB_PORT}",
}
_REDIS = {"addrs": [f"localhost:{stores.REDIS_PORT}"], "db": 1}
_SCHEDULER = {"armadaUrl": f"localhost:{SCHEDULER_PORT}", "forceNoTls": True}


def _database(name: str) -> dict[str, Any]:
    return {
        "connection": {
            "host": "localhost",
            "port": stores.POSTGRES_PORT,
            "user": stores.USER,
            "password": "any",
            "dbname": name,
            "sslmode": "disable",
        }
    }


def _configurations() -> dict[str, dict[str, Any]]:
    lookout = _database("lookout")
    return {
        "server": {
            "grpcPort": SERVER_PORT,
            "httpPort": 8081,
            "metricsPort": 9009,
            "auth": {
                "anonymousAuth": True,
                "permissionGroupMapping": dict.fromkeys(PERMISSIONS, _EVERYBODY),
            },
            "eventsApiRedis": _REDIS,
            "postgres": lookout,
            "queryapi": {"postgres": lookout},
            "pulsar": {"URL": _PULSAR["URL"]},
            "schedulerApiConnection": _SCHEDULER,
            "queueCacheRefreshPeriod": "1s",
            # nodes here have none of it: a job that asks for some fits nowhere
            "submission": {"defaultJobLimits": {"ephemeral-storage": "0"}},
        },
        "scheduler": {
            "grpc": {"port": SCHEDULER_PORT},
            "http": {"port": 8080},
            "metrics": {"port": 9001},
            "auth": {"anonymousAuth": True, "permissionGroupMapping": {"execute_jobs": _EVERYBODY}},
            "pulsar": {"URL": _PULSAR["URL"]},
            "postgres": _database("scheduler"),
            "armadaApi": {"armadaUrl": f"localhost:{SERVER_PORT}", "forceNoTls": True},
            "cyclePeriod": "200ms",
            "schedulePeriod": "1s",
            "queueRefreshPeriod": "1s",
            "scheduling": {
                "indexedNodeLabels": ["kubernetes.io/hostname"],
                "executorUpdateFrequency": "1s",
                "executorTimeout": "30s",  # a cluster that a test takes away is soon counted on no more
            },
        },
        "scheduleringester": {
            "metrics": {"port": 9006},
            "pulsar": _PULSAR,
            "postgres": _database("scheduler"),
            "batchDuration": "50ms",
        },
        "eventingester": {"metricsPort": 9004, "pulsar": _PULSAR, "redis": _REDIS, "batchDuration": "50ms"},
        "lookoutingester": {"metricsPort": 9005, "pulsar": _PULSAR, "postgres": lookout, "batchDuration": "50ms"},
        "lookout": {"postgres": lookout},  # for its tables alone
    }


def server_configuration(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What another server of the same Armada is told."""
    return {**_configurations()["server"], **changes}


def executor_configuration(cluster_id: str, host: str) -> dict[str, Any]:
    """What the executor of one cluster is told.

    Args:
        cluster_id: what Armada calls the cluster.
        host: where Armada's scheduler is.
    """
    quick, soon = "500ms", "200ms"
    return {
        "httpPort": 8082,
        "metric": {"port": 9002},
        "executorApiConnection": {"armadaUrl": f"{host}:{SCHEDULER_PORT}", "forceNoTls": True},
        "application": {"clusterId": cluster_id, "pool": "default"},
        "task": {
            "allocateSpareClusterCapacityInterval": quick,
            "jobLeaseRenewalInterval": quick,
            "podDeletionInterval": quick,
            "stateProcessorInterval": soon,
        },
        # a test counts on all that a node has
        "kubernetes": {"minimumResourcesMarkedAllocatedToNonArmadaPodsPerNode": {"cpu": 0, "memory": 0}},
    }


def executors_seen(count: int) -> str:
    """What the scheduler says when it looks who can run jobs: a job that fits none of them is refused for good."""
    return rf"Retrieved {count} executors"


def files(configurations: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, str]:
    """Configuration files by path: of these programs, or of all of Armada's control plane."""
    return {
        _path(name): json.dumps({**document, "observability": {"enabled": False}}, indent=1)  # JSON is YAML
        for name, document in (configurations or _configurations()).items()
    }


def services() -> list[Service]:
    """Armada's control plane; each is started when its stores can be used."""
    return [service(name, "run") if name == "scheduler" else service(name) for name in COMPONENTS]


def service(name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Service:
    """One program, which starts when it is told to."""
    return Service(name, command(name, *arguments), environment or {}, starts_with_machine=False)


def migrations() -> list[list[str]]:
    """Command lines that make the tables."""
    return [command("scheduler", "migrateDatabase"), command("lookout", "--migrateDatabase")]


def command(name: str, *arguments: str, told: str = "") -> list[str]:
    """How a program is called in its machine; `told` names its configuration, where it is not called as the program."""
    program = f"/usr/local/bin/armada-{name}"
    return ["env", f"--chdir={HOME}", program, *arguments, "--config", _path(told or name)]


def _path(name: str) -> str:
    return f"{_CONFIGURATION}/{name}.yaml"
