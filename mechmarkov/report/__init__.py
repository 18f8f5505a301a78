"""What people see of a result: the single-file HTML report, and the figures' one look."""
