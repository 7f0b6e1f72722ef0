"""Diagnosis of Volcano's configuration: effects on preemptions and on our holds. Pure, except `installed`.

examine         all findings of one scheduler       preemption  whether preemptions are possible at all
scheduler_conf  parsed scheduler configuration      extender    whether Volcano calls our extender, and obeys it
protection      our annotations on Queues           installed   reads a cluster
"""
