"""The OCI runtime handler `cedana`: runs on the host, with the standard library alone."""
