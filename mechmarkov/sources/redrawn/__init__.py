"""Sources that draw a chain for every sequence."""
