"""Rows that are computed again and again: costs, when to balance, which rows go where; pure."""
