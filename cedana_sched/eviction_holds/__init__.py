"""Rules of a hold of an eviction, for every scheduler: pure functions and state of records, requests and given times.

decision              the answer to one eviction
pod_eviction_rule     the rule for an evicted pod
preemption_index      Checkpoints and PreemptionHolds, by what they concern
pods_being_saved      whether any pod is being saved
eviction_persistence  whether a scheduler insists on its choice
first_requests        since when an eviction is requested
"""
