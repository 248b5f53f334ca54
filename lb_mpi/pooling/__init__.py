"""Independent tasks on unequal ranks: intervals of task numbers, taken at the front, stolen from the back."""
