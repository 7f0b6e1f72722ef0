"""The OCI runtime handler `cedana`. Runs on the host, with the standard library only."""
