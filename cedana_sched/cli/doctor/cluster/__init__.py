"""`cedana-sched doctor --cluster`: checks for the admin of a multi-tenant cluster.

examine           runs all checks
reads             reads with the user's permissions, paginated
installation      releases of the chart, and their availability
adapters          schedulers without an adapter
agents            an agent on every node
pod_security      Pod Security of the product's and tenants' namespaces
network_policies  a NetworkPolicy for every component
webhooks          registered, with ready endpoints
policies          admission policies that isolate tenants and tokens
runtimes          runtimes with vulnerabilities (known_holes)
sealing           the sealing key exists
storage           usable, and not public
settings          a release's ConfigMap
"""
