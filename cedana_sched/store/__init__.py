"""Snapshot store: streams become content-addressed chunks in packs; the manifest, written last, is the commit."""
