"""Balancing of rows that are computed repeatedly: row costs, when to balance, which rows move where; pure."""
