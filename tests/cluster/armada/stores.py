"""What Armada keeps its state in: PostgreSQL, Redis, and Pulsar with its own storage, each on the loopback alone."""

from __future__ import annotations

from tests.cluster.machine.services import Service

JARS = "/opt/pulsar"
DATABASES = ("scheduler", "lookout")
USER = "postgres"
POSTGRES_PORT = 5432
REDIS_PORT = 6379
PULSAR_PORT = 6650
PULSAR_WEB_PORT = 8090
"""Armada's programs expect Pulsar's REST there; 8080, its own default, is one of theirs."""

READY = {
    "postgres": r"database system is ready to accept connections",
    "redis": r"Ready to accept connections",
    "pulsar": r"setup completed",  # the broker answers earlier, but has no namespace yet
}
"""What each says when it can be used; they listen where this host cannot ask them."""

_CONFIGURATION = "/etc/pulsar"
_DATA = "/var/lib/pulsar"
_POSTGRES = "/usr/lib/postgresql/17/bin"
_POSTGRES_DATA = "/var/lib/armada-postgres"

_OPENED = (  # to Netty, RocksDB and the metrics, as Pulsar's own start script does
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/java.util.zip",
    "java.base/java.lang",
    "java.base/sun.net",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)

_STANDALONE = {
    "clusterName": "standalone",
    "brokerServicePort": PULSAR_PORT,
    "webServicePort": PULSAR_WEB_PORT,
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "localhost",
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "autoSkipNonRecoverableData": "true",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerCacheSizeMB": 64,
    "journalSyncData": "false",  # nothing of it outlives the test
    "dbStorage_writeCacheMaxSizeMb": 64,
    "dbStorage_readAheadCacheMaxSizeMb": 64,
    "webSocketServiceEnabled": "false",
    "loadBalancerEnabled": "false",
    "defaultNumberOfNamespaceBundles": 4,
    "diskUsageThreshold": "0.99",  # the host's disk is shared: only one that is really full counts
    "diskUsageWarnThreshold": "0.98",
}

_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %d{ISO8601} %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.standalone.name = org.apache.pulsar.PulsarStandalone
logger.standalone.level = debug
"""


def files() -> dict[str, str]:
    """Their configuration files, by path."""
    return {
        f"{_CONFIGURATION}/standalone.conf": "".join(f"{name}={value}\n" for name, value in _STANDALONE.items()),
        f"{_CONFIGURATION}/log4j2.properties": _LOGGING,
    }


def services() -> list[Service]:
    """All three, which need nothing of one another."""
    return [_postgres(), _redis(), _pulsar()]


def _postgres() -> Service:
    """A fresh one, made when it first starts; Debian's own is neither used nor started."""
    as_its_user = f"chpst -u {USER}"
    data = f"install -d -m 700 -o {USER} {_POSTGRES_DATA}"
    initdb = f"{_POSTGRES}/initdb --no-sync --auth=trust --username={USER} --encoding=UTF8 --locale=C"
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": POSTGRES_PORT,
        "unix_socket_directories": "",
        "max_connections": 200,
        "fsync": "off",  # nothing of it outlives the test
        "synchronous_commit": "off",
        "full_page_writes": "off",
    }
    flags = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
    made = f"test -d {_POSTGRES_DATA} || {{ {data}; {as_its_user} {initdb} -D {_POSTGRES_DATA}; }}"
    run = f"exec {as_its_user} {_POSTGRES}/postgres -D {_POSTGRES_DATA} {flags}"
    return Service("postgres", ["sh", "-ec", f"{made}; {run}"], {"LC_ALL": "C"})


def create_databases() -> list[str]:
    """A command line that creates the databases of the components."""
    statements = [f"--command=CREATE DATABASE {name}" for name in DATABASES]
    return [*psql(USER), *statements]


def psql(database: str) -> list[str]:
    """A command line that does in a database what it reads."""
    where = ("--host=127.0.0.1", f"--port={POSTGRES_PORT}", f"--username={USER}", f"--dbname={database}")
    return [f"{_POSTGRES}/psql", *where, "--quiet", "--tuples-only", "--set=ON_ERROR_STOP=1"]


def _redis() -> Service:
    return Service(
        "redis",
        ["redis-server", "--bind", "127.0.0.1", "--port", str(REDIS_PORT), "--save", "", "--appendonly", "no"],
    )


def _pulsar() -> Service:
    return Service(
        "pulsar",
        [
            "java",
            *("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m"),
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),  # it starts sooner, and has little to do
            *(word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")),
            f"-Dlog4j2.configurationFile={_CONFIGURATION}/log4j2.properties",
            *("-cp", f"{JARS}/*", "org.apache.pulsar.PulsarStandaloneStarter"),
            *("--config", f"{_CONFIGURATION}/standalone.conf", "--no-functions-worker", "--no-stream-storage"),
            *("--metadata-dir", f"{_DATA}/metadata", "--bookkeeper-dir", f"{_DATA}/bookkeeper"),
            *("--bookkeeper-port", "3281"),
        ],
    )
