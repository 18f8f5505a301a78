"""What the report answers on its first screen: the verdict, the learning curve, the circuit and four tiles."""
