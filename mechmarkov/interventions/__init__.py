"""Interventions: context managers that change what a model computes, and edits of its input.

Each replaces a component's output x by a function of it, at a hook: everywhere
(`replace.replace_component`) or in what one later component reads (`paths.replace_path`). The effect is the
loss with it less the loss without.
"""
