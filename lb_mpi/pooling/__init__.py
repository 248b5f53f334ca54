"""Independent tasks on unequal ranks: intervals of task numbers, consumed at the front, stolen from the back."""
