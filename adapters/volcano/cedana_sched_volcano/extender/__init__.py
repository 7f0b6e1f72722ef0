"""The service that Volcano's `extender` plugin calls for victims: it gets each preemption first, and can veto victims.

wire        request and response                holder    interface to pod state and eviction marks
selection   choice of victims                   claims    state kept across scheduling cycles
answering   one call, from bytes to bytes       server    HTTP server
holding     a holder over informers             room      free resources of nodes
address     the secret path segment             places    limit of concurrent calls
"""
