"""The service that Volcano's `extender` plugin asks whom it may evict: it hears of a preemption first, and can veto.

wire        what is asked and answered          holder    what is known of pods, and who is told
selection   which evictees are really meant     claims    what stays so from one cycle to the next
answering   one call, from bytes to bytes       server    the same over HTTP
holding     a holder over mirrors               room      what is free on nodes
address     the secret part of where it is asked   places    how many are answered at once
"""
