"""Static distribution: how many tasks each rank gets, and what each part exchanges with the others; pure."""
