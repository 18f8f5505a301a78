"""Findings as data: claims, the arbiter that makes them consistent, the tiles of the first screen."""
