"""What knows nothing of models or sources: whole files, messages, plugins, processes and their limits.

What all share is how something is refused: one line with the field, the value it has and what was expected.
"""
