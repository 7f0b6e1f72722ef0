"""The cluster's API for tests: any kind, as plain dictionaries, and waiting through watches."""
