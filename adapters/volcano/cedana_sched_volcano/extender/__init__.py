"""The service that Volcano's `extender` plugin calls for victims: it gets each preemption first, and can veto victims.

wire                  request and response
answering             one call, from bytes to bytes
selection             choice of victims
claims                state kept across scheduling cycles
pod_states_interface  what a call reads and writes of pods
cached_pod_states     pod states from informers
free_resources        free resources of nodes
call_limit            limit of concurrent calls
server                HTTP server
address_secret        the secret path segment
"""
