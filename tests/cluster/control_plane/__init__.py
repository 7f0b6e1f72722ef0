"""etcd, the API server, the controllers and the scheduler, on a machine that is no node.

A node may so be killed, paused or cut off without taking the API server with it. Webhooks behind Services work all the
same: the API server sends to the pods' addresses (`--enable-aggregator-routing`), which the switch has routes to.
"""
