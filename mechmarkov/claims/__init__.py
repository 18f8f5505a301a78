"""Findings as data, so that one arbiter can make all probes consistent and one grammar tells them.

The structure is a `Claim`: subject, relation, object, value with interval and null, status, evidence, and
the premises behind it. `arbiter` opens claims that contradict each other; a `Tile` picks claims for the
first screen.
"""
