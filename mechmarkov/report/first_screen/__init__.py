"""What the report answers on its first screen: verdict, learning curve, circuit and four tiles.

All of it is made of claims: `verdict.badge` maps them to one word, `headline.Headline` has badge, title and
tiles.
"""
