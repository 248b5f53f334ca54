"""Problems to search: unbalanced trees, the standard benchmark of work stealing."""
