"""The probes: one file or folder, one question. They register through the group `mechmarkov.probes`.

Each defines a `probe`, a `mechmarkov.probing.Probe` of functions: `measure` (arrays), `scores` (numbers
with nulls), `claims` (what was found, as data) and `figures`. None writes English; none knows of another
but by name.
"""
