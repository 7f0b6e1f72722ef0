"""`cedana-sched doctor --cluster`: what matters to the admin of a cluster that several groups share.

examine               runs all
installation          where the product is, whether it runs
release_settings      the chart's values of a release
adapters              schedulers, and what no adapter follows
agents                on every node
node_ends             announced by notices, and by kubelets
checkpoint_policies   whether the objects are valid
protected_namespaces  whether their labels count
pod_security          of our namespace, of tenants'
network_policies      of every component
admission_policies    what isolates tenants and tokens
webhooks              registered, and ready to answer
webhook_calls         the API server reaches them
runtimes              their versions, and known_vulnerabilities
sealing               the key is there
storage               can be used, and not by strangers
"""
