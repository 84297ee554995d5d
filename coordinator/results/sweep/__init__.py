"""The results of a sweep."""
