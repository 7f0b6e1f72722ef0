"""The real Armada beside a test cluster: Pulsar, PostgreSQL, Redis, its components, and an executor for each cluster.

Tests take the fixture `armada` and `jobs.py`; `armada.py` is what the fixture opens.
"""
