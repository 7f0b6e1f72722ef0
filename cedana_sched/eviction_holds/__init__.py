"""Rules of a hold of an eviction, for every scheduler: pure functions and state of records, requests and given times.

decision         the answer to one eviction          pods             the rule for an evicted pod
objects          the records that the rules read     steadiness       whether a scheduler insists on its choice
preemptions      these records by what they concern  first_requests   since when an eviction is requested
pods_being_saved whether any pod is being saved
"""
