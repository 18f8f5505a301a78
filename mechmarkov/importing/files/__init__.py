"""Files and folders of other programs, as they lie: which of their dicts hold weights, settings and steps.

What is read becomes a state dict, name to tensor, the settings that were saved next to it and the training
step, each with the place where it was. Files are read with `mechmarkov.safe`: nothing in them is executed.
"""
