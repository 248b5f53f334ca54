"""Problems to search: two yardsticks of the field, and examples of the `Problem` interface."""
