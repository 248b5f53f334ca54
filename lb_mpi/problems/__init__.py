"""Problems to search: a tree given by a function, and the unbalanced tree that is the yardstick of the field."""
