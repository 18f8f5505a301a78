"""The probes: one file or folder, one question. They register through the group `mechmarkov.probes`."""
