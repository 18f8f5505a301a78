"""What the report answers on its first screen: verdict, learning curve, circuit and four tiles."""
