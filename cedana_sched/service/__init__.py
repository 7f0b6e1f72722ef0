"""What every long-running component in a cluster needs: its file, its log, its port for probes, its start and end."""
