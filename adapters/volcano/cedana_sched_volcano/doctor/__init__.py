"""What Volcano's configuration does to preemptions and to our holds, in plain words. Pure, but for `installed`.

examine     all findings of one scheduler       preemption  whether anything can be preempted at all
scheduler   the scheduler's file, read          extender    whether it asks our extender, and obeys
protection  what Queues say to us               installed   looks at a cluster
"""
