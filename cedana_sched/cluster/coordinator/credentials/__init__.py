"""Issues each node's agent credentials for the namespaces of its pods and orders, and no others."""
