"""Uninstallation from a cluster: releases holds, cleans up nodes, and deletes what Helm would leave behind."""
