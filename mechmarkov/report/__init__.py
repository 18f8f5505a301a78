"""What people see of a result: the single-file HTML report, and the figures' one look.

`html.render` makes a page of `Findings`: cards of probes (`cards`), the first screen (`first_screen`), and
words (`words`, the only English about results). A figure is plotly's or an `AttentionView`, sent as JSON
(`payload`).
"""
