"""Models that other code trained and saved, as runs: one file a layout, and what they share."""
