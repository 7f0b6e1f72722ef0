"""The CRI containers of a node as its files show them: which belong to a pod, and how CRIU must see them."""
