"""Diagnosis of Volcano's configuration: effects on preemptions and on our holds. Pure, except `installation_reader`.

examine              all findings of one scheduler
preemption           whether preemptions are possible at all
scheduler_conf       parsed scheduler configuration
extender             whether Volcano calls our extender, and obeys it
queue_protection     our annotations on Queues
installation_reader  reads a cluster
"""
