"""A server and its clients in one tree: `program.py BINARIES USER CLIENTS TRANSACTIONS`, run in the run's directory.

Root becomes USER first (PostgreSQL refuses root). Starts the server on the data directory beside it, lets pgbench
insert numbered rows over a unix socket, writes the table to `ledger.txt`, and stops the server.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path


def become(user: str) -> None:
    """Give up root for good."""
    account = pwd.getpwnam(user)
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def run(output: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs; its output goes to a file of the run's directory.

    Raises:
        subprocess.CalledProcessError: when it fails.
    """
    with Path(output).open("ab") as file:
        subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=True)


def main() -> None:
    binaries, user, clients, transactions = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    if os.geteuid() == 0:
        become(user)
    here = str(Path.cwd())
    options = f"-c listen_addresses='' -c unix_socket_directories='{here}' -c max_connections=20"
    control = (str(binaries / "pg_ctl"), "--pgdata=data", "--wait")
    psql = (str(binaries / "psql"), "--no-psqlrc", "--host", here, "--dbname=postgres", "--quiet", "--tuples-only")
    run("control.log", *control, "--log=server.log", "--options", options, "start")
    run("control.log", *psql, "--command", "CREATE TABLE ledger (client int NOT NULL, n int NOT NULL)")
    load = ("--client", clients, "--jobs=2", "--transactions", transactions, "--file=insert.sql", "--define=n=0")
    log = ("--log", "--log-prefix=acknowledged")
    run("pgbench.log", str(binaries / "pgbench"), "--no-vacuum", "--host", here, *load, *log, "postgres")
    rows = "COPY (SELECT client, n FROM ledger ORDER BY client, n) TO STDOUT"
    run("ledger.txt", *psql, "--command", rows)
    run("control.log", *control, "--mode=fast", "stop")


if __name__ == "__main__":
    main()
