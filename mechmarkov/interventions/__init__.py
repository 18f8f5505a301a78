"""Interventions: context managers that change what a model computes, and edits of its input."""
