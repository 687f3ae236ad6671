"""FAQ entries, their index and the search over them."""
