"""The probes: one file, one question. They register through the entry-point group `mechmarkov.probes`."""
