"""What people see of a result: the single-file HTML report, the notebook fragment, the figures' one look.

``render`` and ``write`` make the report, ``fragment`` the notebook's table. Probes draw with
``mechmarkov.report.figures`` and import nothing else from here.
"""
