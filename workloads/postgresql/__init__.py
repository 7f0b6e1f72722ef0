"""PostgreSQL under pgbench."""
