"""`cedana-sched doctor --cluster`: what matters to the admin of a cluster that several groups share.

examine           runs all
reads             what a person may read, page by page
installation      where the product is, whether it runs
adapters          schedulers, and what no adapter follows
agents            on every node
pod_security      of our namespace, of tenants'
network_policies  of every component
webhooks          registered, and ready to answer
calls             the API server reaches them
policies          borders of tenants and tokens
runtimes          known_holes of them
sealing           the key is there
storage           can be used, and not by strangers
settings          the chart's values of a release
"""
